"""One step of an optimizer, against a float64 optimizer that is fed the measured gradients and state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from amp_matrix.survey import Status, TensorError
from amp_probe.harness.problem import float64, rms
from amp_probe.harness.recorder import Draft
from amp_probe.harness.script import Lab

UPDATE_EPS = 8.0
"""Roundings, in eps of a step, that the arithmetic of a step may cost; right optimizers need 2.7."""

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Twin:
    """The float64 optimizer on the CPU: parameters, gradients and state as an optimizer on a device has them now.

    Its settings (learning rate, eps) come from `make`, not from the device's optimizer, so that those are judged too.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, make: Make, scale: float = 1.0
    ) -> None:
        self.before = {name: float64(p) for name, p in parameters.items()}
        self.parameters = {name: nn.Parameter(value.clone()) for name, value in self.before.items()}
        self.optimizer = make(list(self.parameters.values()))
        for name, parameter in parameters.items():
            twin = self.parameters[name]
            twin.grad = None if parameter.grad is None else float64(parameter.grad) / scale
            if optimizer.state.get(parameter):
                self.optimizer.state[twin] = state_of(optimizer, parameter)

    def step(self) -> None:
        """Do the step in float64."""
        self.optimizer.step()


def state_of(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    """A copy of what the optimizer keeps for a parameter, on the CPU, floating tensors in float64."""
    return {key: _wide(value) for key, value in optimizer.state.get(parameter, {}).items()}


def judged_step(
    lab: Lab,
    draft: Draft,
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    make: Make,
    step: Callable[[], object],
    scale: float = 1.0,
) -> None:
    """Take the step on the device and judge every parameter and every tensor of state after it.

    `make` gives the float64 optimizer; `scale` is what the gradients are still multiplied by when the step begins.

    A parameter is compared with the float64 one rounded once, in eps of its own dtype; and so is how far each of its
    values moved, since beside a large value a wrong step is small. One that stays where it was while the float64 one
    moves is `inert`. Of the errors the stage keeps those over a limit and the nearest to one.
    """
    before = len(draft.errors)
    twin = Twin(parameters, optimizer, make, scale)
    step()
    lab.synchronize()
    twin.step()
    for name, parameter in parameters.items():
        _judge_parameter(lab, draft, name, parameter, twin, optimizer)
        state = twin.optimizer.state.get(twin.parameters[name], {})
        for key, right in state.items():
            if isinstance(right, Tensor) and right.dim():
                _judge_state(lab, draft, f"{name} {key}", optimizer.state[parameter].get(key), right)
    _forget(draft, before)


def _judge_parameter(
    lab: Lab, draft: Draft, name: str, parameter: nn.Parameter, twin: Twin, optimizer: torch.optim.Optimizer
) -> None:
    before, right = twin.before[name], once_rounded(twin.parameters[name], parameter.dtype)
    if torch.equal(float64(parameter), before) and not torch.equal(right, before):
        moved = float((right - before).abs().max())
        draft.fail(Status.INERT, f"{name} did not move; float64 moves it by up to {moved:.3g}", "unmoved")
    elif not lab.judge(draft, name, parameter, right, eps=torch.finfo(parameter.dtype).eps):
        lost = lost_eps(optimizer, parameter)
        if lost and not parameter.isfinite().all():
            draft.reason, draft.code = f"{name} is NaN or Inf: {lost}", "format"
    else:
        space, eps = spacing(right, before, parameter.dtype), torch.finfo(parameter.dtype).eps
        judge_update(draft, name, float64(parameter) - before, right - before, space, eps)


def judge_update(draft: Draft, name: str, moved: Tensor, right: Tensor, space: Tensor, eps: float) -> None:
    """Judge how far each value of a parameter moved, beside float64's step rounded once; both and `space` in float64.

    A value may be off by one `space`, the distance between the dtype's neighbours there, and by UPDATE_EPS times eps of
    its step's size and of the tensor's typical one: a momentum and a gradient may cancel in the arithmetic.
    """
    over = (moved - right).abs() - space - UPDATE_EPS * eps * (right.abs() + rms(right))
    if over.numel() and not bool((over <= 0.0).all()):
        worst = int(over.argmax())
        by, wanted = float(moved.flatten()[worst]), float(right.flatten()[worst])
        draft.fail(Status.INACCURATE, f"a value of {name} moved by {by:.6g}, in float64 by {wanted:.6g}", "update")


def spacing(values: Tensor, others: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between a dtype's neighbours at the larger of two values, element by element, in float64."""
    info = torch.finfo(dtype)
    larger = torch.maximum(values.abs(), others.abs()).clamp(min=info.smallest_normal)
    return torch.ldexp(torch.full_like(larger, info.eps), torch.frexp(larger).exponent - 1)


def _judge_state(lab: Lab, draft: Draft, name: str, got: Tensor | None, right: Tensor) -> None:
    if got is None:
        draft.fail(Status.INACCURATE, f"the optimizer keeps no {name}", "no_state")
    else:
        lab.judge(draft, name, got, right, eps=torch.finfo(got.dtype).eps)


def _forget(draft: Draft, before: int) -> None:
    """Drop the errors since `before` that say nothing: an optimizer has three tensors for each of a model's."""
    found = draft.errors[before:]
    nearest = max(found, key=_nearness, default=None)
    draft.errors[before:] = [e for e in found if e is nearest or not _nearness(e) <= 1.0]
    for error in found:
        if error not in draft.errors:
            draft.dtypes.pop(error.name, None)


def _nearness(error: TensorError) -> float:
    """How near an error is to its limit; more than 1 is over it, NaN where the tensor is not finite."""
    return max(error.n / error.n_limit, error.s / error.s_limit) if error.n_limit and error.s_limit else error.n


def once_rounded(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded to a dtype once, in float64."""
    return value.detach().to(dtype).double()


def lost_eps(optimizer: torch.optim.Optimizer, parameter: Tensor) -> str:
    """What to say where the optimizer's eps is 0 in the parameter's dtype (pytorch#8860: 1e-8 in float16), or ""."""
    eps = [float(group["eps"]) for group in optimizer.param_groups if group.get("eps")]
    if any(torch.tensor(e).to(parameter.dtype) == 0 for e in eps):
        return f"the optimizer's eps, {min(eps):g}, is 0 in {str(parameter.dtype).removeprefix('torch.')}"
    return ""


def _wide(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return float64(value) if value.is_floating_point() else value.detach().cpu().clone()
