"""Normalisations: `op.layer_norm` and `op.rms_norm`."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.suite import Probe

_WIDTH = 64


def layer_norm(draw: Draw) -> Op:
    """`F.layer_norm` over the last dim with an affine weight that is not 1 and a bias that is not 0.

    Would have caught pytorch#190055 (`mixed_operands`: low-precision input, float32 weight and bias: wrong forward,
    abort backward), variances taken as a difference of large numbers (`offset`), and weight gradients summed in the
    low dtype (`long_reduction`).
    """
    args = {"x": _x(draw), "weight": _affine(draw, draw.gain(_WIDTH)), "bias": _affine(draw, draw.normal(_WIDTH))}
    return Op(fn=_layer_norm, args=args, wide=draw.variant == "mixed_operands")


def rms_norm(draw: Draw) -> Op:
    """`F.rms_norm` over the last dim with an affine weight that is not 1.

    Would have caught squares that overflow fp16 (`large_values`), and weight gradients summed in the low dtype
    (`long_reduction`).
    """
    args = {"x": _x(draw), "weight": _affine(draw, draw.gain(_WIDTH))}
    return Op(fn=_rms_norm, args=args, wide=draw.variant == "mixed_operands")


def _x(draw: Draw) -> Arg:
    rows = 4096 if draw.variant == "long_reduction" else 32
    values = draw.normal(rows, _WIDTH, scale=1000.0 if draw.variant == "large_values" else 1.0)
    if draw.variant == "offset":
        values = (values + 64.0).bfloat16().double()
    if draw.variant == "strided":
        return Arg(values.T.contiguous(), grad=True, layout=lambda t: t.T, strides=(1, rows))
    return Arg(values, grad=True)


def _affine(draw: Draw, values: Tensor) -> Arg:
    return Arg(values, grad=True, keep=draw.variant == "mixed_operands")


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (_WIDTH,), weight, bias)


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (_WIDTH,), weight, eps=1e-5)


_COMMON = ("base", "strided", "long_reduction", "large_values", "mixed_operands")

PROBES: tuple[Probe, ...] = (
    Probe("op.layer_norm", layer_norm, (*_COMMON, "offset")),
    Probe("op.rms_norm", rms_norm, _COMMON),
)
