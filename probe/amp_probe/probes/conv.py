"""Convolutions: `op.conv2d`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.probes.matmul import FULL_MANTISSA
from amp_probe.suite import Probe


def conv2d(draw: Draw) -> Op:
    """`F.conv2d` with 3x3 windows and a bias too large to be lost.

    Would have caught pytorch#119108 (conv in fp16 on mps: contiguous, channels_last or strided trips an assert), a
    bias that is dropped, TF32 or bf16 in place of float32 (`full_mantissa`; cuDNN allows TF32 by default).
    """
    batch, channels, size = (8, 32, 18) if draw.variant == "long_reduction" else (2, 6, 7)
    values = draw.full_mantissa if draw.variant == "full_mantissa" else draw.normal
    args = {
        "x": _image(draw, values(batch, channels, size, size)),
        "weight": _image(draw, values(7, channels, 3, 3)),
        "bias": Arg(draw.normal(7, scale=4.0), grad=True),
    }
    return Op(fn=_conv2d, args=args)


def _image(draw: Draw, values: Tensor) -> Arg:
    if draw.variant != "channels_last":
        return Arg(values, grad=True)
    _, channels, height, width = values.shape
    strides = (channels * height * width, 1, width * channels, channels)
    return Arg(values, grad=True, layout=_channels_last, strides=strides)


def _channels_last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last)


def _conv2d(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x, weight, bias)


PROBES: tuple[Probe, ...] = (
    Probe("op.conv2d", conv2d, ("base", "channels_last", "long_reduction")),
    Probe("op.conv2d", conv2d, ("full_mantissa",), FULL_MANTISSA),
)
