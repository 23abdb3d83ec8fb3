"""Activations and the softmaxes: `op.gelu`, `op.silu`, `op.softmax`, `op.log_softmax`."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.suite import Probe


def gelu(draw: Draw) -> Op:
    """`F.gelu(x)`, and its tanh form (`tanh`), whose cube leaves fp16 at 41 (`tanh_large_values`).

    Would have caught an activation that is computed in the low dtype inside, and NaN from inf * 0 in its tails.
    """
    form = "tanh" if draw.variant.startswith("tanh") else "none"
    return _elementwise(draw, functools.partial(F.gelu, approximate=form))


def silu(draw: Draw) -> Op:
    """`F.silu(x)`.

    Would have caught exp(-x) overflowing in fp16 (`large_values`), forward or backward.
    """
    return _elementwise(draw, F.silu)


def softmax(draw: Draw) -> Op:
    """`torch.softmax(x, -1)`: rows that sum to one.

    Would have caught pytorch#96602 (softmax gives NaN), exponentials taken before the maximum is subtracted
    (`large_values`), and sums that stick in a low dtype (`long_reduction`).
    """
    return _rows(draw, F.softmax)


def log_softmax(draw: Draw) -> Op:
    """`F.log_softmax(x, -1)`.

    Would have caught -inf from the logarithm of a probability that underflowed (`large_values`), and sums that stick in
    a low dtype (`long_reduction`).
    """
    return _rows(draw, F.log_softmax)


def _elementwise(draw: Draw, function: Callable[[Tensor], Tensor]) -> Op:
    values = draw.normal(48, 40, scale=100.0 if draw.variant.endswith("large_values") else 2.0)
    return Op(fn=lambda x: function(x), args={"x": Arg(values, grad=True)})


def _rows(draw: Draw, function: Callable[..., Tensor]) -> Op:
    columns = 8192 if draw.variant == "long_reduction" else 64
    values = draw.normal(40, columns, scale=200.0 if draw.variant == "large_values" else 2.0)
    if draw.variant == "strided":
        x = Arg(values.T.contiguous(), grad=True, layout=lambda t: t.T, strides=(1, 40))
    else:
        x = Arg(values, grad=True)
    return Op(fn=lambda x: function(x, dim=-1), args={"x": x})


_ROWS = ("base", "large_values", "long_reduction", "strided")

PROBES: tuple[Probe, ...] = (
    Probe("op.softmax", softmax, _ROWS),
    Probe("op.log_softmax", log_softmax, _ROWS),
    Probe("op.gelu", gelu, ("base", "tanh", "large_values", "tanh_large_values")),
    Probe("op.silu", silu, ("base", "large_values")),
)
