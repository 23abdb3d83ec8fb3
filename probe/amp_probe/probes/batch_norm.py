"""Normalisations of channels: `op.batch_norm`, `op.group_norm` and `op.instance_norm`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw, on_grid
from amp_probe.probes.inputs import SMALL, channels_last, dense, low, poisoned, transposed, unit
from amp_probe.suite import Probe

_GROUPS, _MOMENTUM = 3, 0.25
_KEPT = ("mixed_operands", "eval_mixed_operands")
_EVAL = ("eval", "eval_channels_last", "eval_poisoned_row", "eval_mixed_operands")


def batch_norm(draw: Draw) -> Op:
    """`F.batch_norm` in training, which moves the running statistics, and with them in evaluation (`eval`).

    Would have caught statistics of the batch that are kept in the low dtype or taken as a difference of large numbers
    (`offset`: a mean of 64 rounded to bf16 moves every output by a quarter of its spread), running
    statistics that do not move, gradients of weight and bias that are summed in the low dtype (`long_reduction`), and
    pytorch#190055 one norm on (`mixed_operands`: low-precision input, float32 weight, bias and statistics).
    """
    x = _x(draw)
    channels, stored = x.shape[1], draw.variant in _KEPT
    mean, var = draw.normal(channels), draw.uniform(channels, low=0.5, high=2.0)
    args = {
        "x": _placed(draw, x),
        **_affine(draw, channels),
        "mean": Arg(mean, keep=stored),
        "var": Arg(var, keep=stored),
    }
    if draw.variant.startswith("eval"):
        return Op(fn=_evaluated, args=args, wide=stored)
    return Op(fn=_trained, args=args, wide=stored, invariants=(_moved(x, mean, var),))


def group_norm(draw: Draw) -> Op:
    """`F.group_norm` with three groups.

    Would have caught pytorch#190055 (`mixed_operands`), a layout that is read as another (`channels_last`), NaN of one
    sample in others (`poisoned_row`), and sums of gradients in the low dtype (`long_reduction`).
    """
    return _norm(draw, lambda x, weight, bias: F.group_norm(x, _GROUPS, weight, bias))


def instance_norm(draw: Draw) -> Op:
    """`F.instance_norm` with an affine weight that is not 1.

    Would have caught the faults of group_norm, in the batch norm that it is made of: every sample becomes a channel,
    and the weight is repeated for each, whose gradients are added up again (`long_reduction`).
    """
    return _norm(draw, lambda x, weight, bias: F.instance_norm(x, weight=weight, bias=bias))


def _norm(draw: Draw, norm: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Op:
    x = _x(draw)
    args = {"x": _placed(draw, x), **_affine(draw, x.shape[1])}
    if draw.variant == "of_product":
        args["one"] = unit(x.shape[-1])
        return Op(fn=lambda x, weight, bias, one: norm(low(x, one), weight, bias), args=args)
    return Op(fn=lambda x, weight, bias: norm(x, weight, bias), args=args, wide=draw.variant in _KEPT)


def _x(draw: Draw) -> Tensor:
    shape = {"long_reduction": (64, 6, 8, 8), "odd": (3, 9, 1, 13)}.get(draw.variant, (4, 6, 4, 4))
    scale = {"large_values": 128.0, "small_values": SMALL}.get(draw.variant, 1.0)
    values = draw.normal(*shape, scale=scale)
    if draw.variant == "offset":
        return on_grid(values + 64.0)
    return poisoned(values) if draw.variant.endswith("poisoned_row") else values


def _placed(draw: Draw, values: Tensor) -> Arg:
    if draw.variant.endswith("channels_last"):
        return channels_last(values)
    return transposed(values) if draw.variant == "strided" else dense(values)


def _affine(draw: Draw, channels: int) -> dict[str, Arg]:
    keep = draw.variant in _KEPT
    return {
        "weight": Arg(draw.gain(channels), grad=True, keep=keep),
        "bias": Arg(draw.normal(channels), grad=True, keep=keep),
    }


def _trained(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, ...]:
    mean, var = mean.clone(), var.clone()
    out = F.batch_norm(x, mean, var, weight, bias, training=True, momentum=_MOMENTUM)
    return out, mean, var


def _evaluated(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return F.batch_norm(x, mean, var, weight, bias, training=False)


def _moved(x: Tensor, mean: Tensor, var: Tensor) -> Callable[[tuple[Tensor, ...]], str]:
    """Running statistics against those of the batch: the ideal run cannot judge what a kernel writes in place."""
    dims = (0, 2, 3)
    right = (
        (1 - _MOMENTUM) * mean + _MOMENTUM * x.mean(dims),
        (1 - _MOMENTUM) * var + _MOMENTUM * x.var(dims),
    )

    def wrong(outputs: tuple[Tensor, ...]) -> str:
        for name, got, wanted in zip(("mean", "variance"), outputs[1:], right, strict=True):
            off = (got.double() - wanted).abs() / wanted.abs().clamp(min=1.0)
            if not bool((off <= 4 * max(torch.finfo(got.dtype).eps, 2.0**-20)).all()):
                return f"the running {name} is {float(off.max()):.3g} off what this batch moves it to"
        return ""

    return wrong


_STRESS = ("channels_last", "strided", "odd", "long_reduction", "large_values", "small_values", "offset")

PROBES: tuple[Probe, ...] = (
    Probe("op.batch_norm", batch_norm, ("base", *_EVAL, "mixed_operands", *_STRESS)),
    Probe("op.group_norm", group_norm, ("base", "of_product", "mixed_operands", "poisoned_row", *_STRESS)),
    Probe("op.instance_norm", instance_norm, ("base", "of_product", "mixed_operands", "poisoned_row", *_STRESS)),
)
