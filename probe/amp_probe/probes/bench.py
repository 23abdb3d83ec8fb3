"""An optimizer and a GradScaler fed gradients from outside, and beside them the float64 loop fed the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from amp_matrix.survey import Status
from amp_probe.draw import Draw
from amp_probe.harness.problem import float64
from amp_probe.harness.recorder import Draft
from amp_probe.harness.script import Lab
from amp_probe.harness.update import once_rounded, state_of
from amp_probe.probes.optimizers import Form

SCALE, GROWTH, BACKOFF, INTERVAL = 1024.0, 2.0, 0.5, 2
SCALED = ("fp16-mixed", "bf16-true", "fp16-true")
"""Where a scaler meets float32, bfloat16 and float16 gradients."""
_SHAPES = ((24, 40), (40,), (3, 5, 7), (1,))


def values_and_gradients(draw: Draw, steps: int) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Values near 1 or -1, and gradients for so many steps that always lead away from 0: nothing cancels."""
    signs = [2.0 * draw.integers(*shape, high=2).double() - 1.0 for shape in _SHAPES]
    values = [-sign * draw.gain(*sign.shape) for sign in signs]
    return values, [[s * draw.uniform(*s.shape, low=0.25, high=1.0) for s in signs] for _ in range(steps)]


class Bench:
    """One optimizer in a form, its parameters, and a scaler (its own unless given).

    The float64 optimizer gets the parameters and the state as they were after the last good step, so that a skipped
    one must leave no trace.
    """

    def __init__(self, lab: Lab, form: Form, values: Sequence[Tensor], scaler: torch.amp.GradScaler | None) -> None:
        self.lab = lab
        self.parameters = [nn.Parameter(lab.place(v)) for v in values]
        self.optimizer = form.make(self.parameters)
        self.twins = [nn.Parameter(v.clone()) for v in values]
        self.twin = form.plain(self.twins)
        self.scaler = scaler or make_scaler(lab)
        self.states: list[dict[str, Any]] = [{} for _ in values]
        self.before = list(values)

    def feed(self, gradients: Sequence[Tensor]) -> None:
        """What the backward of a scaled loss would leave."""
        feed(self.lab, self.scaler, self.parameters, gradients)

    def spoil(self, place: int, value: float) -> None:
        """One element of one gradient becomes the value: the first of tensor 0, the last of any other."""
        gradient = self.parameters[place].grad
        assert gradient is not None
        gradient.view(-1)[-1 if place else 0] = value

    def expect(self, gradients: Sequence[Tensor]) -> None:
        """Do the step in float64, from where the parameters are."""
        with torch.no_grad():
            for index, twin in enumerate(self.twins):
                twin.copy_(self.before[index])
                twin.grad = gradients[index].clone()
                if self.states[index]:
                    self.twin.state[twin] = self.states[index]
        self.twin.step()

    def step(self, unscale: bool) -> None:
        """Step through the scaler, which unscales first, or leaves that to the step."""
        if unscale:
            self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)

    def judge(self, draft: Draft) -> None:
        """Every parameter and every tensor of state against the float64 ones, in eps of their own dtype."""
        self.lab.synchronize()
        for index, (parameter, twin) in enumerate(zip(self.parameters, self.twins, strict=True)):
            name = f"tensor {index}"
            if torch.equal(float64(parameter), self.before[index]) and not torch.equal(twin, self.before[index]):
                draft.fail(Status.INERT, f"{name} did not move", "unmoved")
            judge(self.lab, draft, name, parameter, twin)
            self.states[index] = state_of(self.optimizer, parameter)
            for key, right in self.twin.state.get(twin, {}).items():
                if isinstance(right, Tensor) and right.dim():
                    judge(self.lab, draft, f"{name} {key}", self.optimizer.state[parameter][key], right)
        self.before = [float64(p) for p in self.parameters]

    def untouched(self, draft: Draft, value: float) -> None:
        """No parameter is another than before the step that had a gradient of the value."""
        self.lab.synchronize()
        for index, (parameter, old) in enumerate(zip(self.parameters, self.before, strict=True)):
            if not torch.equal(float64(parameter), old):
                reason = f"tensor {index} moved in a step with a gradient of {value:g}"
                draft.fail(Status.INACCURATE, reason, "moved")


def make_scaler(lab: Lab, scale: float = SCALE, interval: int = 1000) -> torch.amp.GradScaler:
    """A scaler for the lab's device that grows after so many good steps."""
    return torch.amp.GradScaler(
        lab.device.type, init_scale=scale, growth_factor=GROWTH, backoff_factor=BACKOFF, growth_interval=interval
    )


def feed(
    lab: Lab, scaler: torch.amp.GradScaler, parameters: Iterable[nn.Parameter], gradients: Iterable[Tensor]
) -> None:
    """Put each gradient times the scale into its parameter, in the parameter's layout."""
    scaler.scale(torch.ones(1, device=lab.device))  # the scale comes to the device at its first use
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = torch.empty_like(parameter).copy_(lab.place(gradient * scaler.get_scale()))


def judge(lab: Lab, draft: Draft, name: str, got: Tensor, right: Tensor) -> bool:
    """Against the float64 value rounded once, in eps of the tensor's own dtype; gives whether it is fine."""
    return lab.judge(draft, name, got, once_rounded(right, got.dtype), eps=torch.finfo(got.dtype).eps)


def check_scale(draft: Draft, scaler: torch.amp.GradScaler, expected: float) -> None:
    """The scale is what it must be, exactly."""
    scale = scaler.get_scale()
    draft.numbers["scale"] = scale
    if scale != expected:
        draft.fail(Status.INACCURATE, f"the scale is {scale:g}, not {expected:g}", "scale")


@contextmanager
def nan_for_memory() -> Iterator[None]:
    """Memory that nothing was written to is NaN, not what happened to stand there."""
    owner: Any = torch.utils.deterministic
    mode, fill = torch.get_deterministic_debug_mode(), owner.fill_uninitialized_memory
    try:
        torch.set_deterministic_debug_mode(1)  # what has no deterministic form warns, and runs
        owner.fill_uninitialized_memory = True
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        owner.fill_uninitialized_memory = fill
