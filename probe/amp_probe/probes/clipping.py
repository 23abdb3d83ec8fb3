"""Clipping of gradients where norms are large, small, or of another kind: `optim.clip_norm`, `optim.clip_value`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from amp_matrix.survey import Status
from amp_probe.case import Script
from amp_probe.draw import Draw
from amp_probe.harness.problem import float64
from amp_probe.harness.recorder import Draft
from amp_probe.harness.script import Lab
from amp_probe.probes.optim_forms import STORED
from amp_probe.suite import Probe

_SHAPES = ((64, 64), (40,), (6, 5, 7), (1,))
_FORMS = {"loop": False, "foreach": True}
_INF = float("inf")


class _Kind(NamedTuple):
    """Gradients of about this size, clipped by a norm of this order to this part of it."""

    size: float
    order: float = 2.0
    part: float = 0.25


_KINDS = {
    "large": _Kind(2.0**11, part=2.0**-14),
    "small": _Kind(2.0**-12),
    "one_norm": _Kind(1.0, order=1.0),
    "inf_norm": _Kind(1.0, order=_INF),
}


def clip_norm(draw: Draw) -> Script:
    """`clip_grad_norm_` as a loop and with foreach; then with an infinite gradient, which it must refuse when asked to.

    `large`: every gradient fits float16, and their norm, 2^17, does not: it is inf, the factor 0, and all gradients
    become zeros in silence. `small`: squares that vanish when they are added up in float16, a norm of 0, and nothing is
    clipped. Sibling of `optim.clip`.
    """
    kind = _KINDS[draw.variant]
    gradients = [draw.normal(*shape, scale=kind.size).clamp(-4 * kind.size, 4 * kind.size) for shape in _SHAPES]
    norm = float(torch.cat([g.flatten() for g in gradients]).norm(kind.order))

    def run(lab: Lab) -> None:
        for name, foreach in _FORMS.items():
            with lab.stage(name) as draft:
                parameters = _parameters(lab, gradients)
                limit = kind.part * norm
                total = nn.utils.clip_grad_norm_(parameters, limit, kind.order, foreach=foreach)
                draft.numbers |= {"norm": float(total), "norm_float64": norm}
                lab.judge(draft, "norm", total, torch.tensor(norm).double(), eps=torch.finfo(lab.storage).eps)
                _judge_clipped(lab, draft, parameters, gradients, limit / (norm + 1e-6))
        with lab.stage("refuse") as draft:
            _refuse(draft, _parameters(lab, [g / kind.size for g in gradients]), kind.order)

    return Script(run)


def clip_value(draw: Draw) -> Script:
    """`clip_grad_value_` as a loop and with foreach: exact, an infinite gradient comes to the limit, NaN stays NaN.

    Would have caught a clamp that swallows NaN (and with it what GradScaler looks for), one that leaves out the tail of
    a tensor, and a limit that is rounded into another.
    """
    gradients = [draw.normal(*shape) for shape in _SHAPES]
    gradients[1][:3] = torch.tensor([_INF, -_INF, float("nan")])

    def run(lab: Lab) -> None:
        for name, foreach in _FORMS.items():
            with lab.stage(name) as draft:
                parameters = _parameters(lab, gradients)
                nn.utils.clip_grad_value_(parameters, 0.5, foreach=foreach)
                lab.synchronize()
                for index, (parameter, given) in enumerate(zip(parameters, gradients, strict=True)):
                    _judge_value(draft, index, parameter, given.clamp(-0.5, 0.5))

    return Script(run)


def _parameters(lab: Lab, gradients: Sequence[Tensor]) -> list[nn.Parameter]:
    parameters = []
    for gradient in gradients:
        value = gradient.to(lab.storage).to(lab.device)  # NaN is among some
        parameters.append(nn.Parameter(torch.ones_like(value)))
        parameters[-1].grad = value.clone()
    return parameters


def _judge_clipped(
    lab: Lab, draft: Draft, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor], factor: float
) -> None:
    for index, (parameter, given) in enumerate(zip(parameters, gradients, strict=True)):
        assert parameter.grad is not None
        if given.any() and not parameter.grad.any():
            draft.fail(Status.INACCURATE, f"the gradient of tensor {index} became all zeros", "zero_gradient")
        lab.judge(draft, f"grad {index}", parameter.grad, given * factor, eps=torch.finfo(lab.storage).eps)


def _refuse(draft: Draft, parameters: Sequence[nn.Parameter], order: float) -> None:
    spoiled = parameters[1].grad
    assert spoiled is not None
    spoiled[2] = float("nan")
    try:
        nn.utils.clip_grad_norm_(parameters, 1.0, order, error_if_nonfinite=True)
    except RuntimeError as error:
        if "non-finite" not in str(error):
            raise
    else:
        draft.fail(Status.INACCURATE, "a NaN gradient is not refused by error_if_nonfinite", "swallowed")


def _judge_value(draft: Draft, index: int, parameter: nn.Parameter, right: Tensor) -> None:
    assert parameter.grad is not None
    got = float64(parameter.grad)
    if not torch.equal(got.isnan(), right.isnan()):
        draft.fail(Status.INACCURATE, f"clipping changed which values of gradient {index} are NaN", "swallowed")
    elif not torch.equal(got.nan_to_num(7.0), right.nan_to_num(7.0)):
        count = int((got.nan_to_num(7.0) != right.nan_to_num(7.0)).sum())
        draft.fail(Status.INACCURATE, f"{count} of {got.numel()} values of gradient {index} are wrong", "exact")


PROBES: tuple[Probe, ...] = (
    Probe("optim.clip_norm", clip_norm, tuple(_KINDS), STORED),
    Probe("optim.clip_value", clip_value, precisions=STORED),
)
