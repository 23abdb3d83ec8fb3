"""What a precision gains over fp32 for one operator: `speed.matmul`, `speed.conv2d` and others, under no_grad."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amp_probe.case import Timing
from amp_probe.draw import Draw
from amp_probe.harness.script import Lab
from amp_probe.suite import Probe

Work = Callable[[], object]


class _Size(NamedTuple):
    """How large the work is on a kind of device: about a millisecond of fp32, and enough to fill it."""

    product: int
    pictures: int
    channels: int
    length: int
    rows: int
    width: int
    batch: int


_SIZES = {
    "cpu": _Size(product=320, pictures=1, channels=64, length=128, rows=512, width=128, batch=16),
    "mps": _Size(product=2048, pictures=16, channels=128, length=1024, rows=8192, width=512, batch=64),
}
_LARGE = _Size(product=4096, pictures=64, channels=256, length=2048, rows=32768, width=1024, batch=128)
_HEADS, _HEAD, _SIDE = 8, 64, 28
_CONVOLUTIONS = {"base": 1, "grouped": 8, "dilated": 1, "depthwise": 0}
"""Variants and their groups; 0: as many as channels."""


def matmul(draw: Draw) -> Timing:
    """A square product of two activations.

    Would have caught pytorch#86270 (bf16 on a CPU twice as slow as float32; 193 times with ONEDNN_MAX_CPU_ISA=AVX2).
    Activations come in the low dtype, as from the operator before; weights in the stored one, and autocast casts them.
    """
    return Timing(_matmul)


def linear(draw: Draw) -> Timing:
    """A linear layer with a bias. Would have caught what `speed.matmul` does, and casts that cost more."""
    return Timing(_linear)


def conv2d(draw: Draw) -> Timing:
    """A 3 by 3 convolution: plain, `grouped`, `dilated`, `depthwise`.

    Would have caught pytorch#146508 (fp16 convolutions slower than float32: 1.5 to 2.9 times on a CPU that has AMX, 15
    to 33 times in bf16 without), and fast kernels that only plain convolutions have.
    """
    return Timing(lambda lab: _conv2d(lab, draw.variant))


def attention(draw: Draw) -> Timing:
    """`F.scaled_dot_product_attention`, causal. Would have caught a fused kernel that one dtype has and another not."""
    return Timing(_attention)


def layer_norm(draw: Draw) -> Timing:
    """`F.layer_norm`, which memory bounds: a gain is kept, and never called emulated."""
    return Timing(_layer_norm, products=False)


def lstm(draw: Draw) -> Timing:
    """`nn.LSTM`. Would have caught a fused layer that one dtype has and another not (torch-xpu-ops#4066)."""
    return Timing(_lstm)


def _matmul(lab: Lab) -> Work:
    n = _size(lab).product
    return _under(lab, torch.matmul, _activation(lab, n, n), _activation(lab, n, n))


def _linear(lab: Lab) -> Work:
    n = _size(lab).product
    return _under(lab, F.linear, _activation(lab, 8, n // 8, n), _weight(lab, n, n), _weight(lab, n))


def _conv2d(lab: Lab, variant: str) -> Work:
    size, spread = _size(lab), 2 if variant == "dilated" else 1
    groups = _CONVOLUTIONS[variant] or size.channels
    pictures = size.pictures * (4 if variant == "depthwise" else 1)
    x = _activation(lab, pictures, size.channels, _SIDE, _SIDE)
    weight = _weight(lab, size.channels, size.channels // groups, 3, 3)

    def convolve(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight, padding=spread, dilation=spread, groups=groups)

    return _under(lab, convolve, x, weight)


def _attention(lab: Lab) -> Work:
    length = _size(lab).length
    q, k, v = (_activation(lab, 1, _HEADS, length, _HEAD) for _ in range(3))
    return _under(lab, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)


def _layer_norm(lab: Lab) -> Work:
    width = _size(lab).width * 4
    x = _activation(lab, _size(lab).rows, width)
    return _under(lab, lambda x, w, b: F.layer_norm(x, (width,), w, b), x, _weight(lab, width), _weight(lab, width))


def _lstm(lab: Lab) -> Work:
    size = _size(lab)
    layer = nn.LSTM(size.width, size.width, batch_first=True).to(lab.device, lab.storage).eval()
    return _under(lab, layer, _activation(lab, size.batch, 8, size.width))


def _under(lab: Lab, call: Callable[..., object], *given: Tensor) -> Work:
    def work() -> object:
        with torch.no_grad(), lab.enter():
            return call(*given)

    return work


def _size(lab: Lab) -> _Size:
    return _SIZES.get(lab.device.type, _LARGE)


def _activation(lab: Lab, *shape: int) -> Tensor:
    return torch.randn(shape).to(lab.device, lab.low)


def _weight(lab: Lab, *shape: int) -> Tensor:
    return torch.randn(shape).to(lab.device, lab.storage)


PROBES: tuple[Probe, ...] = (
    Probe("speed.matmul", matmul, timeout=30.0, alone=True),
    Probe("speed.linear", linear, timeout=30.0, alone=True),
    Probe("speed.conv2d", conv2d, tuple(_CONVOLUTIONS), timeout=30.0, alone=True),
    Probe("speed.attention", attention, timeout=30.0, alone=True),
    Probe("speed.layer_norm", layer_norm, timeout=30.0, alone=True),
    Probe("speed.lstm", lstm, timeout=30.0, alone=True),
)
