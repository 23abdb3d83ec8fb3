"""Fourier transforms: `op.fft` and `op.stft`, whose complex results are given as pairs of real numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from amp_probe.case import Op
from amp_probe.draw import Draw
from amp_probe.probes.inputs import AUTOCAST, dense, low, poisoned, transposed, unit
from amp_probe.suite import Probe


def fft(draw: Draw) -> Op:
    """`torch.fft.rfft(x)` and its inverse.

    Would have caught a half-precision transform that takes powers of two alone (`odd`), bf16 that is refused or not,
    and low values from a product that autocast hands on as they are (`of_product`).
    """
    length = {"odd": 37, "large": 4096}.get(draw.variant, 64)
    values = draw.normal(6, length)
    x = transposed(values) if draw.variant == "strided" else dense(_poisoned(draw, values))
    if draw.variant == "of_product":
        return Op(fn=lambda x, one: _spectrum(low(x, one)), args={"x": x, "one": unit(length)})
    return Op(fn=_spectrum, args={"x": x})


def inverse(draw: Draw) -> Op:
    """`torch.fft.irfft(torch.fft.rfft(x))`: what went in.

    Would have caught a factor that is left out on the way back, and sums that leave fp16 (`large_values`).
    """
    x = draw.uniform(6, 64, low=512.0, high=2048.0) if draw.variant == "large_values" else draw.normal(6, 64)
    return Op(fn=lambda x: torch.fft.irfft(torch.fft.rfft(x)), args={"x": dense(x)})


def stft(draw: Draw) -> Op:
    """`torch.stft` of a signal, with a window: how speech models begin.

    Would have caught a signal and a window of different dtypes under autocast (`of_product`).
    """
    length = 96
    args = {"x": dense(draw.normal(2, length)), "window": dense(draw.uniform(16, low=0.25, high=1.0))}
    if draw.variant == "of_product":
        return Op(fn=lambda x, window, one: _frames(low(x, one), window), args=args | {"one": unit(length)})
    return Op(fn=_frames, args=args)


def _poisoned(draw: Draw, values: Tensor) -> Tensor:
    return poisoned(values) if draw.variant == "poisoned_row" else values


def _spectrum(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.fft.rfft(x))


def _frames(x: Tensor, window: Tensor) -> Tensor:
    return torch.view_as_real(torch.stft(x, 16, hop_length=8, window=window, center=False, return_complex=True))


PROBES: tuple[Probe, ...] = (
    Probe("op.fft", fft, ("base", "odd", "large", "strided", "poisoned_row")),
    Probe("op.fft", fft, ("of_product",), AUTOCAST),
    Probe("op.ifft", inverse, ("base", "large_values")),
    Probe("op.stft", stft, ("base",)),
    Probe("op.stft", stft, ("of_product",), AUTOCAST),
)
