"""What a GradScaler is for, and its state: `scaler.underflow`, `scaler.overflow`, `scaler.state_dict`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from amp_matrix.survey import Status
from amp_probe.case import Script
from amp_probe.draw import Draw
from amp_probe.harness.fresh import reloaded
from amp_probe.harness.problem import Problem, float64, judge_gradients, problem
from amp_probe.harness.recorder import Draft
from amp_probe.harness.script import Lab
from amp_probe.harness.update import judged_step
from amp_probe.probes.bench import BACKOFF, GROWTH, check_scale, make_scaler, values_and_gradients
from amp_probe.probes.models import MLP, numbers, squared_error
from amp_probe.suite import Probe

_TINY = 2.0**-18
"""Times this loss, the gradients of activations are under float16's smallest number, 2^-24."""
_RESCUE = 2.0**18
_HIGH = 2.0**40
_TRACKER = "_growth_tracker"


def underflow(draw: Draw) -> Script:
    """A loss so small that gradients vanish in float16: scaled by 2^18, every one must come through, and be right.

    What vanishes without a scaler is kept as a number, `vanished` (the part of gradient elements that are 0). Would
    have caught a scale that does not reach the backward pass, denormal numbers flushed to zero on the way, and
    pytorch#184286 (unscaling gives zeros).
    """
    posed = problem(MLP, _tiny_error, numbers(draw), draw)

    def run(lab: Lab) -> None:
        with lab.stage("build"):
            model = posed.on(lab)
            x, target = lab.place(posed.batch[0]), lab.place(posed.batch[1])
            optimizer = _fast(list(model.parameters()))
            scaler = make_scaler(lab, _RESCUE)
        with lab.stage("unscaled") as draft:
            _loss(lab, posed, model, x, target).backward()  # type: ignore[no-untyped-call]
            draft.numbers["vanished"] = _vanished(model)
            optimizer.zero_grad()
        with lab.stage("backward"):
            scaler.scale(_loss(lab, posed, model, x, target)).backward()  # type: ignore[no-untyped-call]
        with lab.stage("unscale") as draft:
            scaler.unscale_(optimizer)
            draft.numbers["vanished"] = _vanished(model)
            parameters = dict(model.named_parameters())
            judge_gradients(lab, draft, model, posed.exact(parameters)[1], posed.ideal(lab, parameters, _RESCUE))
        with lab.stage("step") as draft:
            judged_step(lab, draft, parameters, optimizer, _fast, lambda: scaler.step(optimizer))

    return Script(run)


def overflow(draw: Draw) -> Script:
    """A scale of 2^40: gradients overflow in earnest. No parameter moves until the scale has come down; then it steps.

    Would have caught a scaler that looks at the loss alone, one that stops halving, and an infinity that turns to NaN
    in the parameters on its way (pytorch#186360).
    """
    posed = problem(MLP, squared_error, numbers(draw), draw)

    def run(lab: Lab) -> None:
        with lab.stage("build"):
            model = posed.on(lab)
            x, target = lab.place(posed.batch[0]), lab.place(posed.batch[1])
            optimizer = _sgd(list(model.parameters()))
            scaler = make_scaler(lab, _HIGH)
            before = [float64(p) for p in model.parameters()]
        with lab.stage("back_off") as draft:
            scale = _HIGH
            for _ in range(40):
                optimizer.zero_grad()
                scaler.scale(_loss(lab, posed, model, x, target)).backward()  # type: ignore[no-untyped-call]
                if _all_finite(model):
                    break
                scaler.step(optimizer)
                scaler.update()
                scale *= BACKOFF
                check_scale(draft, scaler, scale)
            _unmoved(draft, model, before)
            draft.numbers["scale"] = scale
            if scale == _HIGH:
                draft.fail(Status.INERT, "a loss times 2^40 overflowed nothing: not float16", "no_overflow")
        with lab.stage("step") as draft:
            parameters = dict(model.named_parameters())
            judged_step(lab, draft, parameters, optimizer, _sgd, lambda: scaler.step(optimizer), scale)

    return Script(run)


def state_dict(draw: Draw) -> Script:
    """A scaler saved in the middle of an interval, loaded by another, steps and grows with the first from there on.

    Through `torch.save` and `torch.load`, into a scaler with other settings that was never used (its tensors do not
    exist yet), and into one that was. Would have caught a scale or a growth tracker that is lost or left on the host.
    """
    _, fed = values_and_gradients(draw, 2)

    def run(lab: Lab) -> None:
        with lab.stage("build"):
            parameter = nn.Parameter(lab.place(torch.ones_like(fed[0][0])))
            optimizer = torch.optim.SGD([parameter], lr=0.1)
            scaler = make_scaler(lab, interval=3)
        with lab.stage("save") as draft:
            for spoiled in (True, False, False):
                _feed_step(lab, scaler, optimizer, parameter, fed[0][0], spoiled)
            saved = reloaded(scaler.state_dict())
            _check_state(draft, saved)
        with lab.stage("load_unused") as draft:
            _resume(lab, draft, saved, torch.amp.GradScaler(lab.device.type), fed[1][0])
        with lab.stage("load_used") as draft:
            used = make_scaler(lab, 4.0, interval=100)
            _feed_step(lab, used, optimizer, parameter, fed[0][0], False)
            _resume(lab, draft, saved, used, fed[1][0])

    return Script(run)


def _resume(lab: Lab, draft: Draft, saved: dict[str, float], scaler: torch.amp.GradScaler, gradient: Tensor) -> None:
    """The third good step in a row doubles the scale; a bad one after it halves it."""
    scaler.load_state_dict(saved)
    parameter = nn.Parameter(lab.place(torch.ones_like(gradient)))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scale = saved["scale"]
    check_scale(draft, scaler, scale)
    _feed_step(lab, scaler, optimizer, parameter, gradient, False)
    lab.judge(draft, "parameter", parameter, 1.0 - 0.1 * gradient, eps=torch.finfo(lab.storage).eps)
    check_scale(draft, scaler, scale * GROWTH)
    _feed_step(lab, scaler, optimizer, parameter, gradient, True)
    check_scale(draft, scaler, scale * GROWTH * BACKOFF)


def _check_state(draft: Draft, saved: dict[str, float]) -> None:
    wanted = {
        "scale": 512.0,
        "growth_factor": GROWTH,
        "backoff_factor": BACKOFF,
        "growth_interval": 3,
        _TRACKER: 2,
    }
    if saved != wanted:
        draft.fail(Status.INACCURATE, f"the state that was saved is {saved}, not {wanted}", "state")


def _feed_step(
    lab: Lab,
    scaler: torch.amp.GradScaler,
    optimizer: torch.optim.Optimizer,
    parameter: nn.Parameter,
    gradient: Tensor,
    spoiled: bool,
) -> None:
    scale = scaler.scale(torch.ones((), device=lab.device))
    parameter.grad = (lab.place(gradient) * scale).to(lab.storage)
    if spoiled:
        parameter.grad.view(-1)[1] = float("inf")
    scaler.step(optimizer)
    scaler.update()


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def _fast(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """As far a step as if the loss were not tiny."""
    return torch.optim.SGD(parameters, lr=0.1 / _TINY)


def _tiny_error(output: Tensor, target: Tensor) -> Tensor:
    return squared_error(output, target) * _TINY


def _loss(lab: Lab, posed: Problem, model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    with lab.enter():
        return posed.loss(model(x), target)


def _vanished(model: nn.Module) -> float:
    """The part of all gradient elements that are zero."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    zeros = sum(int((g == 0).sum()) for g in gradients)
    return zeros / max(1, sum(g.numel() for g in gradients))


def _all_finite(model: nn.Module) -> bool:
    return all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def _unmoved(draft: Draft, model: nn.Module, before: list[Tensor]) -> None:
    for (name, parameter), old in zip(model.named_parameters(), before, strict=True):
        if not torch.equal(float64(parameter), old):
            draft.fail(Status.INACCURATE, f"{name} moved while the gradients overflowed", "moved")


PROBES: tuple[Probe, ...] = (
    Probe("scaler.underflow", underflow, precisions=("fp32", "bf16-mixed", "fp16-mixed", "bf16-true")),
    Probe("scaler.overflow", overflow, precisions=("fp16-mixed",)),
    Probe("scaler.state_dict", state_dict, precisions=("fp16-mixed", "bf16-true")),
)
