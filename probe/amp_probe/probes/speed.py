"""What a precision gains over fp32: `speed.train_step` and `speed.infer`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from amp_probe.case import Timing
from amp_probe.draw import Draw
from amp_probe.harness.script import Lab
from amp_probe.suite import Probe


class _Size(NamedTuple):
    rows: int
    width: int
    layers: int


_SIZES = {"cpu": _Size(256, 384, 2), "mps": _Size(2048, 1024, 3)}
_LARGE = _Size(4096, 2048, 3)
"""For cuda and xpu: smaller ones wait for the launch of kernels, and a faster precision gains nothing there."""


def train_step(draw: Draw) -> Timing:
    """Forward, backward and SGD of linear layers and GELU, with a GradScaler in fp16-mixed.

    Would have caught pytorch#86270 and pytorch#146508 (a low precision slower than float32), and bfloat16 that is only
    emulated (`is_bf16_supported()` says True, pytorch PR 148322).
    """
    return Timing(_train_step)


def infer(draw: Draw) -> Timing:
    """One forward pass of linear layers and GELU under no_grad. Would have caught what `speed.train_step` does."""
    return Timing(_infer)


def _train_step(lab: Lab) -> Callable[[], Any]:
    model, x = _model(lab)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(lab.device.type, init_scale=1024.0, enabled=lab.precision.compute == "fp16-mixed")

    def work() -> None:
        optimizer.zero_grad()
        with lab.enter():
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return work


def _infer(lab: Lab) -> Callable[[], Any]:
    model, x = _model(lab)

    def work() -> Tensor:
        with torch.no_grad(), lab.enter():
            output: Tensor = model(x)
        return output

    return work


def _model(lab: Lab) -> tuple[nn.Module, Tensor]:
    size = _SIZES.get(lab.device.type, _LARGE)
    layers = [layer for _ in range(size.layers) for layer in (nn.Linear(size.width, size.width), nn.GELU())]
    x = torch.randn(size.rows, size.width)
    return nn.Sequential(*layers).to(lab.device, lab.storage), x.to(lab.device, lab.storage)


PROBES: tuple[Probe, ...] = (
    Probe("speed.train_step", train_step, timeout=30.0, alone=True),
    Probe("speed.infer", infer, timeout=30.0, alone=True),
)
