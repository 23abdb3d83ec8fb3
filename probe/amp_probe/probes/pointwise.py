"""Functions of one element: exponentials, logarithms, powers, and the activations beside gelu and silu."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.probes.inputs import channels_last, dense, poisoned, transposed
from amp_probe.suite import Probe

_END, _END_OF_EXP = 15.0, 11.0
"""Between the two exp leaves fp16 (at 11.09): what is made of it must not."""


def sigmoid(draw: Draw) -> Op:
    """`torch.sigmoid(x)`.

    Would have caught exp(-x) that overflows fp16 into NaN (`large_values`), and tails that are flushed to 0.
    """
    return _of_any(draw, torch.sigmoid)


def tanh(draw: Draw) -> Op:
    """`torch.tanh(x)`.

    Would have caught (e^x - e^-x) / (e^x + e^-x), which is inf / inf (`large_values`) and cancels near 0
    (`small_values`).
    """
    return _of_any(draw, torch.tanh)


def softplus(draw: Draw) -> Op:
    """`F.softplus(x)`.

    Would have caught log(1 + e^x) without a threshold: inf in fp16 from 11.1 on (`large_values`).
    """
    return _of_any(draw, F.softplus)


def exp(draw: Draw) -> Op:
    """`torch.exp(x)`, up to the end of fp16 (`large_values`).

    Would have caught an exponential whose argument is rounded to the low dtype after a multiplication by log2(e).
    """
    return _of_any(draw, torch.exp)


def expm1(draw: Draw) -> Op:
    """`torch.expm1(x)`.

    Would have caught exp(x) - 1, which is 0 or one eps near 0 (`small_values`).
    """
    return _of_any(draw, torch.expm1)


def log(draw: Draw) -> Op:
    """`torch.log(x)`; near 1, where the result is small (`near_one`), and at the ends of fp16 (`large_values`).

    Would have caught a logarithm that is computed in the low dtype inside, where it cancels near 1.
    """
    return _of_positive(draw, torch.log)


def log1p(draw: Draw) -> Op:
    """`torch.log1p(x)`.

    Would have caught log(1 + x) with a 1 + x that is rounded to the low dtype (`small_values`).
    """
    return _of_positive(draw, torch.log1p)


def power(draw: Draw) -> Op:
    """`x ** 3`, `x ** 0.5` and `x ** y` of positive x.

    Would have caught exp(y * log(x)) in the low dtype, where a large power loses all digits (`large_values`).
    """
    large = draw.variant == "large_values"
    values = draw.uniform(48, 40, low=256.0, high=4096.0) if large else _positive(draw)
    args = {"x": _placed(draw, values), "y": dense(draw.uniform(*values.shape, low=0.5, high=1.0))}
    most = 1.25 if large else 3.0  # more is beyond fp16 for everyone
    return Op(fn=lambda x, y: (x**most, x**0.5, x**y), args=args)


def rsqrt(draw: Draw) -> Op:
    """`torch.rsqrt(x)`, the heart of every norm.

    Would have caught an approximate reciprocal root, and x ** -1.5 that overflows in backward (`small_values`).
    """
    return _of_positive(draw, torch.rsqrt)


def _of_any(draw: Draw, function: Callable[[Tensor], Tensor]) -> Op:
    if draw.variant == "large_values":
        values = draw.uniform(48, 40, low=-_END, high=_END_OF_EXP if function is torch.exp else _END)
    elif draw.variant == "channels_last":
        values = draw.normal(3, 5, 7, 9, scale=2.0)
    else:
        values = draw.normal(48, 40, scale=2.0**-7 if draw.variant == "small_values" else 2.0)
    return Op(fn=lambda x: function(x), args={"x": _placed(draw, values)})


def _of_positive(draw: Draw, function: Callable[[Tensor], Tensor]) -> Op:
    return Op(fn=lambda x: function(x), args={"x": _placed(draw, _positive(draw))})


def _positive(draw: Draw) -> Tensor:
    low, high = {
        "near_one": (0.875, 1.125),
        "large_values": (256.0, 2.0**15),
        "small_values": (2.0**-9, 2.0**-6),
    }.get(draw.variant, (0.25, 8.0))
    return draw.uniform(48, 40, low=low, high=high)


def _placed(draw: Draw, values: Tensor) -> Arg:
    if draw.variant == "channels_last":
        return channels_last(values)
    if draw.variant == "strided":
        return transposed(values)
    return dense(poisoned(values) if draw.variant == "poisoned_row" else values)


_LARGE = ("base", "large_values", "strided")

PROBES: tuple[Probe, ...] = (
    Probe("op.sigmoid", sigmoid, (*_LARGE, "channels_last")),
    Probe("op.tanh", tanh, (*_LARGE, "small_values")),
    Probe("op.softplus", softplus, _LARGE),
    Probe("op.exp", exp, _LARGE),
    Probe("op.expm1", expm1, ("base", "small_values")),
    Probe("op.log", log, (*_LARGE, "near_one", "small_values")),
    Probe("op.log1p", log1p, ("base", "small_values")),
    Probe("op.pow", power, _LARGE),
    Probe("op.rsqrt", rsqrt, ("base", "small_values", "large_values")),
)
