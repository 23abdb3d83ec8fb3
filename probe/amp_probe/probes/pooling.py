"""Windows over signals, images and volumes: pooling, and the sums of overlapping patches (`op.fold`, `op.unfold`)."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.probes.inputs import channels_last, dense, distinct, poisoned, transposed
from amp_probe.suite import Probe


def avg_pool(draw: Draw) -> Op:
    """`F.avg_pool2d` with windows that overlap.

    Would have caught pytorch#119108 (pool in fp16 on mps, every layout), a window's sum that leaves fp16 before it is
    divided (`large_values`), and gradients of pixels under thousands of windows (`long_reduction`).
    """
    if draw.variant == "long_reduction":
        return _pool(draw, lambda x: F.avg_pool2d(x, 40, stride=1), draw.normal(1, 1, 80, 80))
    return _pool(draw, lambda x: F.avg_pool2d(x, 3, stride=2, padding=1), _values(draw))


def adaptive_avg_pool(draw: Draw) -> Op:
    """`F.adaptive_avg_pool2d` to 2 x 3, and to one pixel (`global`), over thousands of pixels (`long_reduction`).

    Would have caught a mean whose sum sticks in the low dtype, or leaves fp16 (`large_values`).
    """
    size = 1 if draw.variant in ("global", "long_reduction") else (2, 3)
    x = draw.uniform(2, 3, 80, 70) if draw.variant == "long_reduction" else _values(draw)
    return _pool(draw, lambda x: F.adaptive_avg_pool2d(x, size), x)


def max_pool(draw: Draw) -> Op:
    """`F.max_pool2d` with windows that overlap, over values without ties.

    Would have caught pytorch#119108 (pool in fp16 on mps, every layout), and gradients of the one pixel that wins
    thousands of windows (`long_reduction`: pytorch#198199 for pools).
    """
    if draw.variant == "long_reduction":
        return _pool(draw, lambda x: F.max_pool2d(x, 40, stride=1), _peak(draw))
    return _pool(draw, lambda x: F.max_pool2d(x, 3, stride=2, padding=1), _values(draw))


def adaptive_max_pool(draw: Draw) -> Op:
    """`F.adaptive_max_pool2d`, over values without ties.

    Would have caught the layouts of pytorch#119108, and windows that overlap where sizes do not divide.
    """
    return _pool(draw, lambda x: F.adaptive_max_pool2d(x, (2, 3)), _values(draw))


def pool_1d_3d(draw: Draw) -> Op:
    """`F.max_pool1d` and `F.max_pool3d`, or (`avg`) `F.avg_pool1d` and `F.avg_pool3d`.

    Would have caught kernels that know images alone.
    """
    signal, volume = distinct(draw, 6, 20).view(2, 3, 20), distinct(draw, 2, 300).view(2, 3, 4, 5, 5)
    pools = _means if draw.variant == "avg" else _largest
    return Op(
        fn=lambda signal, volume: pools(signal, volume), args={"signal": dense(signal), "volume": _laid(draw, volume)}
    )


def fold(draw: Draw) -> Op:
    """`F.fold` of patches that overlap: sums of windows, the backward of unfold.

    Would have caught sums of thousands of patches that stick in the low dtype (`long_reduction`: pytorch#198199).
    """
    if draw.variant == "long_reduction":
        values = 1.0 + 0.5 * draw.uniform(1, 24 * 24, 24 * 24)
        return Op(fn=lambda x: F.fold(x, 47, 24), args={"x": dense(values.bfloat16().double())})
    return Op(fn=lambda x: F.fold(x, (6, 7), 3), args={"x": dense(draw.normal(2, 5 * 9, 20))})


def unfold(draw: Draw) -> Op:
    """`F.unfold(x, 3)`, whose backward adds up overlapping patches.

    Would have caught the gradients of pixels in hundreds of patches (`long_reduction`), and views read as dense.
    """
    size, x = (24, draw.normal(1, 1, 47, 47)) if draw.variant == "long_reduction" else (3, _values(draw))
    return _pool(draw, lambda x: F.unfold(x, size), x)


def _values(draw: Draw) -> Tensor:
    """Images of 7 x 9 without ties."""
    values = distinct(draw, 2, 3 * 7 * 9).view(2, 3, 7, 9)
    if draw.variant == "large_values":
        return values.abs() * 2.0**11
    return poisoned(values) if draw.variant == "poisoned_row" else values


def _peak(draw: Draw) -> Tensor:
    """An image whose middle is its maximum: it wins every window of 40 x 40."""
    values = draw.uniform(1, 1, 79, 79)
    values[..., 39, 39] = 8.0
    return values


def _pool(draw: Draw, pool: Callable[[Tensor], Tensor], values: Tensor) -> Op:
    return Op(fn=lambda x: pool(x), args={"x": _laid(draw, values)})


def _laid(draw: Draw, values: Tensor) -> Arg:
    if draw.variant == "channels_last":
        return channels_last(values)
    return transposed(values) if draw.variant == "strided" else dense(values)


def _largest(signal: Tensor, volume: Tensor) -> tuple[Tensor, ...]:
    return F.max_pool1d(signal, 4, stride=3), F.max_pool3d(volume, 2, stride=1)


def _means(signal: Tensor, volume: Tensor) -> tuple[Tensor, ...]:
    return F.avg_pool1d(signal, 4, stride=3), F.avg_pool3d(volume, 2, stride=1)


_LAYOUTS = ("base", "channels_last", "strided", "poisoned_row")

PROBES: tuple[Probe, ...] = (
    Probe("op.avg_pool", avg_pool, (*_LAYOUTS, "large_values", "long_reduction")),
    Probe("op.adaptive_avg_pool", adaptive_avg_pool, (*_LAYOUTS, "global", "large_values", "long_reduction")),
    Probe("op.max_pool", max_pool, (*_LAYOUTS, "long_reduction")),
    Probe("op.adaptive_max_pool", adaptive_max_pool, _LAYOUTS),
    Probe("op.pool_1d_3d", pool_1d_3d, ("base", "avg", "channels_last", "strided")),
    Probe("op.fold", fold, ("base", "long_reduction")),
    Probe("op.unfold", unfold, ("base", "channels_last", "strided", "long_reduction")),
)
