"""Optimizers: `optim.step`, `optim.clip`, `optim.tiny_update`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from amp_matrix.survey import Status
from amp_probe.case import Script
from amp_probe.draw import Draw, on_grid
from amp_probe.harness.problem import float64
from amp_probe.harness.recorder import Draft
from amp_probe.harness.script import Lab
from amp_probe.harness.training import RATIO
from amp_probe.harness.update import Make, judged_step
from amp_probe.suite import Probe

_SHAPES = ((48, 40), (40,), (6, 5, 7), (1,))
_OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def step(draw: Draw) -> Script:
    """Two steps of SGD (`sgd`) or AdamW (`adamw`) in their default form, fed gradients from 2^-14 to 4.

    Each is compared with a float64 optimizer fed the same gradients and state. Would have caught pytorch#8860 (Adam's
    eps is 0 in float16: NaN after one step), an optimizer that skips a tensor, and state that is not kept.
    """
    make = _OPTIMIZERS[draw.variant]
    values = [draw.normal(*shape) for shape in _SHAPES]
    gradients = [[_wide_range(draw, *shape) for shape in _SHAPES] for _ in range(2)]

    def run(lab: Lab) -> None:
        with lab.stage("build"):
            parameters = {f"tensor {i}": nn.Parameter(lab.place(v)) for i, v in enumerate(values)}
            optimizer = make(list(parameters.values()))
        for name, fed in zip(("step", "second_step"), gradients, strict=True):
            with lab.stage(name) as draft:
                _feed(lab, parameters.values(), fed)
                judged_step(lab, draft, parameters, optimizer, make, optimizer.step)

    return Script(run)


def clip(draw: Draw) -> Script:
    """`clip_grad_norm_`: the norm that it returns, gradients scaled down to it, and none touched that is below it.

    Would have caught norms added up in the low dtype, a tensor left out of the norm or of the scaling, and a factor
    that is rounded to 1.
    """
    gradients = [draw.normal(*shape, scale=2.0) for shape in _SHAPES]
    norm = float(torch.cat([g.flatten() for g in gradients]).norm())

    def run(lab: Lab) -> None:
        with lab.stage("build"):
            parameters = [nn.Parameter(lab.place(g)) for g in gradients]
        with lab.stage("clip") as draft:
            _clip(lab, draft, parameters, gradients, norm, limit=norm / 3)
        with lab.stage("below") as draft:
            _clip(lab, draft, parameters, gradients, norm, limit=norm * 3)

    return Script(run)


def tiny_update(draw: Draw) -> Script:
    """SGD with a learning rate of 1e-3 on weights of 1.0, ten times: the weights must come down by 1e-2.

    bfloat16 has nothing between 0.996 and 1.0, so there every step vanishes: `inert`, a parameter that never moved.
    """

    def run(lab: Lab) -> None:
        with lab.stage("build"):
            weight = nn.Parameter(lab.place(torch.ones(64, dtype=torch.float64)))
            optimizer = torch.optim.SGD([weight], lr=1e-3)
        with lab.stage("step") as draft:
            for _ in range(10):
                weight.grad = torch.ones_like(weight)
                optimizer.step()
            moved = (1.0 - float64(weight)) / 1e-2
            _judge_tiny(draft, float(moved.min()), float(moved.max()))

    return Script(run)


def _judge_tiny(draft: Draft, least: float, most: float) -> None:
    """Against the limits of movement: updates of 1e-3 may be rounded, and must not vanish."""
    draft.numbers |= {"ratio_low": least, "ratio_high": most}
    if most == 0.0:
        draft.fail(Status.INERT, "a weight of 1.0 never moved by ten updates of 1e-3", "unmoved")
    elif not RATIO[0] <= least <= most <= RATIO[1]:
        reason = f"a weight of 1.0 moved {least:.3g} to {most:.3g} times as far as ten updates of 1e-3"
        draft.fail(Status.INACCURATE, reason, "movement")


def _wide_range(draw: Draw, *shape: int) -> Tensor:
    """Gradients of many sizes: normal values times 2^-13 to 2."""
    return on_grid(draw.normal(*shape) * 2.0 ** draw.integers(*shape, low=-13, high=2).double())


def _feed(lab: Lab, parameters: object, gradients: list[Tensor]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):  # type: ignore[call-overload]
        parameter.grad = lab.place(gradient)


def _clip(
    lab: Lab, draft: Draft, parameters: list[nn.Parameter], gradients: list[Tensor], norm: float, limit: float
) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = lab.place(gradient)
    total = torch.nn.utils.clip_grad_norm_(parameters, limit)
    eps, scale = torch.finfo(lab.storage).eps, min(1.0, limit / (norm + 1e-6))
    lab.judge(draft, "norm", total, torch.tensor(norm, dtype=torch.float64), eps=eps)
    for index, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        assert parameter.grad is not None
        if scale == 1.0 and not torch.equal(float64(parameter.grad), gradient):
            draft.fail(Status.INACCURATE, f"the gradient of tensor {index} changed below the limit", "exact")
        lab.judge(draft, f"grad {index}", parameter.grad, gradient * scale, eps=eps)


PROBES: tuple[Probe, ...] = (
    Probe("optim.step", step, tuple(_OPTIMIZERS)),
    Probe("optim.clip", clip),
    Probe("optim.tiny_update", tiny_update, precisions=("bf16-true", "fp16-true")),
)
