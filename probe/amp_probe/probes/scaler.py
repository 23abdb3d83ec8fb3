"""The life of a GradScaler: `scaler.lifecycle`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from amp_matrix.survey import Status
from amp_probe.case import Script
from amp_probe.draw import Draw
from amp_probe.harness.problem import Problem, float64, judge_gradients, problem
from amp_probe.harness.recorder import Draft
from amp_probe.harness.script import Lab
from amp_probe.harness.update import Make, judged_step
from amp_probe.probes.models import MLP, numbers, squared_error
from amp_probe.suite import Probe

_INITIAL, _GROWTH, _BACKOFF, _INTERVAL = 1024.0, 2.0, 0.5, 2
_OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def lifecycle(draw: Draw) -> Script:
    """Scale, backward, unscale, clip, step; a step with an infinite gradient; growth; accumulation of micro-batches; a
    step that unscales by itself.

    Would have caught pytorch#142397 (mps has no float64: step raises), pytorch#184286 (unscaling zeroes gradients in
    silence), pytorch#186360 (an infinite gradient and parameters move), and names pytorch#74739 (float16 parameters
    are refused, by design) as `unsupported`.
    """
    posed = problem(MLP, squared_error, numbers(draw), draw)

    def run(lab: Lab) -> None:
        with lab.stage("build"):
            life = _Life(lab, posed, _OPTIMIZERS[draw.variant])
        for name in ("scale", "backward", "unscale", "clip", "step", "inf_step", "growth", "accumulation", "last_step"):
            with lab.stage(name) as draft:
                getattr(life, name)(draft)

    return Script(run)


class _Life:
    """One scaler, one optimizer and one model, from stage to stage."""

    def __init__(self, lab: Lab, posed: Problem, make: Make) -> None:
        self.lab, self.posed, self.make = lab, posed, make
        self.model = posed.on(lab)
        self.parameters = dict(self.model.named_parameters())
        self.x, self.target = lab.place(posed.batch[0]), lab.place(posed.batch[1])
        self.optimizer = make(list(self.model.parameters()))
        self.scaler = torch.amp.GradScaler(
            lab.device.type,
            init_scale=_INITIAL,
            growth_factor=_GROWTH,
            backoff_factor=_BACKOFF,
            growth_interval=_INTERVAL,
        )
        self.expected = _INITIAL

    def scale(self, draft: Draft) -> None:
        """The loss comes back times the scale: exactly, since that is a power of two."""
        loss = self._loss()
        self.scaled = self.scaler.scale(loss)
        self._check_scale(draft)
        if not torch.equal(float64(self.scaled), float64(loss) * _INITIAL):
            came = float(self.scaled.detach())
            reason = f"the loss, {float(loss.detach()):.6g}, times {_INITIAL:g} came out as {came:.6g}"
            draft.fail(Status.INACCURATE, reason, "exact")

    def backward(self, draft: Draft) -> None:
        """Scaled gradients stand in every parameter, finite."""
        self.scaled.backward()  # type: ignore[no-untyped-call]
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                draft.fail(Status.INACCURATE, f"{name} got no gradient", "no_gradient")
            elif not parameter.grad.isfinite().all():
                draft.fail(Status.NONFINITE, f"the scaled gradient of {name} is NaN or Inf", "backend")
        self.before = {name: float64(p.grad) for name, p in self.parameters.items() if p.grad is not None}

    def unscale(self, draft: Draft) -> None:
        """Dividing by a power of two is exact; and the gradients are those of float64."""
        self.scaler.unscale_(self.optimizer)
        for name, parameter in self.parameters.items():
            if parameter.grad is not None and not torch.equal(float64(parameter.grad), self.before[name] / _INITIAL):
                draft.fail(
                    Status.INACCURATE, f"unscaling changed the gradient of {name} by more than the scale", "exact"
                )
        self._judge_gradients(draft)

    def clip(self, draft: Draft) -> None:
        """Between unscale and step, as users do; the norm is that of the unscaled gradients."""
        fed = {name: float64(p.grad) for name, p in self.parameters.items() if p.grad is not None}
        norm = torch.cat([g.flatten() for g in fed.values()]).norm()
        limit, eps = float(norm) / 2, torch.finfo(self.lab.storage).eps
        total = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.lab.judge(draft, "norm", total, norm, eps=eps)
        for name, gradient in fed.items():
            got = self.parameters[name].grad
            assert got is not None
            self.lab.judge(draft, f"grad {name}", got, gradient * limit / (float(norm) + 1e-6), eps=eps)

    def step(self, draft: Draft) -> None:
        """The optimizer steps as the float64 one fed these gradients does; the scale stays, and grows no earlier."""
        self._judged_step(draft)
        self._check_scale(draft)

    def inf_step(self, draft: Draft) -> None:
        """One value that is not finite, of any kind, anywhere: no parameter and no state moves, the scale backs off."""
        for part, place, value in ((0.0, 3, "inf"), (0.5, 0, "-inf"), (1.0, -1, "nan")):
            self._accumulate(parts=1)
            gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
            gradients[round(part * (len(gradients) - 1))].view(-1)[place] = float(value)
            self._skipped_step(draft, value)

    def _skipped_step(self, draft: Draft, value: str) -> None:
        before, state = self._values(), self._state()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        for name, parameter in self._values().items():
            if not torch.equal(parameter, before[name]):
                draft.fail(Status.INACCURATE, f"{name} moved in a step with a gradient of {value}", "moved")
        if any(not torch.equal(new, old) for new, old in zip(self._state(), state, strict=True)):
            draft.fail(
                Status.INACCURATE, f"the optimizer's state changed in a step with a gradient of {value}", "moved"
            )
        self.expected *= _BACKOFF
        self._check_scale(draft)

    def growth(self, draft: Draft) -> None:
        """After so many good steps in a row the scale doubles, and not before."""
        for count in range(1, _INTERVAL + 1):
            self._accumulate(parts=1)
            self.scaler.unscale_(self.optimizer)
            self._judged_step(draft)
            self.expected *= _GROWTH if count == _INTERVAL else 1.0
            self._check_scale(draft)

    def accumulation(self, draft: Draft) -> None:
        """Two micro-batches give the gradients of one batch, unscaled once at the end."""
        self._accumulate(parts=2)
        self.scaler.unscale_(self.optimizer)
        self._judge_gradients(draft)
        self._judged_step(draft)

    def last_step(self, draft: Draft) -> None:
        """Without `unscale_`, as most users write it: `step` divides by the scale."""
        self._accumulate(parts=1)
        scale = self.scaler.get_scale()
        judged_step(self.lab, draft, self.parameters, self.optimizer, self.make, self._step, scale)
        self.expected *= _GROWTH
        self._check_scale(draft)

    def _loss(self, rows: slice = slice(None)) -> Tensor:
        with self.lab.enter():
            return self.posed.loss(self.model(self.x[rows]), self.target[rows])

    def _accumulate(self, parts: int) -> None:
        self.optimizer.zero_grad()
        size = len(self.x) // parts
        for start in range(0, len(self.x), size):
            loss = self._loss(slice(start, start + size)) / parts
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def _judge_gradients(self, draft: Draft) -> None:
        _, right = self.posed.exact(self.parameters)
        ideal = self.posed.ideal(self.lab, self.parameters, self.scaler.get_scale())
        judge_gradients(self.lab, draft, self.model, right, ideal)

    def _judged_step(self, draft: Draft) -> None:
        judged_step(self.lab, draft, self.parameters, self.optimizer, self.make, self._step)

    def _step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _check_scale(self, draft: Draft) -> None:
        scale = self.scaler.get_scale()
        draft.numbers["scale"] = scale
        if scale != self.expected:
            draft.fail(Status.INACCURATE, f"the scale is {scale:g}, not {self.expected:g}", "scale")

    def _values(self) -> dict[str, Tensor]:
        return {name: float64(p) for name, p in self.parameters.items()}

    def _state(self) -> list[Tensor]:
        tensors = [v for p in self.parameters.values() for v in self.optimizer.state.get(p, {}).values()]
        return [float64(t) for t in tensors if isinstance(t, Tensor)]


PROBES: tuple[Probe, ...] = (
    Probe("scaler.lifecycle", lifecycle, tuple(_OPTIMIZERS), ("fp16-mixed", "bf16-true", "fp16-true")),
)
