"""Convolutions: `op.conv1d`, `op.conv2d`, `op.conv3d` and `op.conv_transpose2d`."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.probes.inputs import channels_last, dense, poisoned, transposed
from amp_probe.probes.matmul import FULL_MANTISSA
from amp_probe.suite import Probe


def conv1d(draw: Draw) -> Op:
    """`F.conv1d` with windows of 5 and a bias too large to be lost.

    Would have caught signals that are transposed views (`strided`: batch, time, channels made batch, channels, time),
    and gradients of weight and bias that are summed in the low dtype (`long_reduction`).
    """
    shape = (16, 8, 260) if draw.variant == "long_reduction" else (2, 6, 20)
    return _conv(draw, F.conv1d, shape, (7, shape[1], 5))


def conv2d(draw: Draw) -> Op:
    """`F.conv2d` with 3x3 windows and a bias too large to be lost.

    Would have caught pytorch#119108 (conv in fp16 on mps: contiguous, channels_last or strided trips an assert), a
    bias that is dropped, one sample's NaN in others (`poisoned_row`), TF32 or bf16 in place of float32
    (`full_mantissa`; cuDNN allows TF32 by default). `odd`: stride, dilation, padding and groups; `depthwise`: a group
    a channel.
    """
    shape = (8, 32, 18) if draw.variant == "long_reduction" else (2, 6, 7)
    if draw.variant == "odd":
        conv = functools.partial(F.conv2d, stride=2, padding=1, dilation=2, groups=3)
        return _conv(draw, conv, (1, 9, 13, 11), (6, 3, 3, 3))
    if draw.variant == "depthwise":
        return _conv(draw, functools.partial(F.conv2d, padding=1, groups=16), (2, 16, 5, 5), (16, 1, 3, 3))
    return _conv(draw, F.conv2d, (*shape, shape[-1]), (7, shape[1], 3, 3))


def conv3d(draw: Draw) -> Op:
    """`F.conv3d` with 2x3x3 windows and a bias too large to be lost.

    Would have caught kernels that know images and not volumes: pytorch#119108 one dimension on (`channels_last`), and
    a padded, strided volume (`odd`).
    """
    if draw.variant == "odd":
        return _conv(draw, functools.partial(F.conv3d, stride=2, padding=1), (1, 3, 5, 7, 3), (5, 3, 2, 3, 3))
    shape = (4, 6, 9, 12, 12) if draw.variant == "long_reduction" else (2, 3, 3, 5, 5)
    return _conv(draw, F.conv3d, shape, (6, shape[1], 2, 3, 3))


def conv_transpose2d(draw: Draw) -> Op:
    """`F.conv_transpose2d` with 3x3 windows, a stride of 2 and a bias too large to be lost.

    Would have caught overlapping windows that are added in the low dtype, and the layouts of pytorch#119108. `odd`:
    groups, dilation and output padding.
    """
    if draw.variant == "odd":
        conv = functools.partial(F.conv_transpose2d, stride=3, output_padding=1, dilation=2, groups=3)
        return _conv(draw, conv, (1, 9, 3, 5), (9, 2, 3, 3), bias=6)
    shape = (8, 16, 12, 12) if draw.variant == "long_reduction" else (2, 6, 4, 3)
    return _conv(draw, functools.partial(F.conv_transpose2d, stride=2), shape, (shape[1], 5, 3, 3), bias=5)


def _conv(
    draw: Draw, conv: Callable[..., Tensor], shape: tuple[int, ...], weight: tuple[int, ...], bias: int | None = None
) -> Op:
    values = draw.full_mantissa if draw.variant == "full_mantissa" else draw.normal
    scale = 256.0 if draw.variant == "large_values" else 1.0
    x, w = scale * values(*shape), values(*weight)
    args = {
        "x": _laid(draw, poisoned(x, 0) if draw.variant == "poisoned_row" else x),
        "weight": _laid(draw, w),
        "bias": Arg(draw.normal(bias or weight[0], scale=4.0 * scale), grad=True),
    }
    return Op(fn=lambda x, weight, bias: conv(x, weight, bias), args=args)


def _laid(draw: Draw, values: Tensor) -> Arg:
    if draw.variant == "channels_last":
        return channels_last(values)
    return transposed(values) if draw.variant == "strided" else dense(values)


_COMMON = ("base", "strided", "long_reduction", "poisoned_row")

PROBES: tuple[Probe, ...] = (
    Probe("op.conv1d", conv1d, _COMMON),
    Probe("op.conv2d", conv2d, (*_COMMON, "channels_last", "odd", "depthwise", "large_values")),
    Probe("op.conv2d", conv2d, ("full_mantissa",), FULL_MANTISSA),
    Probe("op.conv3d", conv3d, (*_COMMON, "channels_last", "odd")),
    Probe("op.conv_transpose2d", conv_transpose2d, (*_COMMON, "channels_last", "odd")),
)
