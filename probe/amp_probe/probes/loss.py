"""Losses: `op.cross_entropy` and `op.mse`."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.suite import Probe

_IGNORED = -100


def cross_entropy(draw: Draw) -> Op:
    """`F.cross_entropy(logits, target)`, the mean over tokens.

    Would have caught a loss that overflows or sticks in fp16 over a large vocabulary (`long_reduction`), -inf from
    saturated logits (`large_values`), and padded targets that are counted (`ignore_index`).
    """
    tokens, words = (256, 2048) if draw.variant == "long_reduction" else (48, 40)
    target = draw.integers(tokens, high=words)
    if draw.variant == "ignore_index":
        target[::3] = _IGNORED
    scale = 100.0 if draw.variant == "large_values" else 2.0
    args = {"logits": Arg(draw.normal(tokens, words, scale=scale), grad=True), "target": Arg(target)}
    return Op(fn=_cross_entropy, args=args)


def mse(draw: Draw) -> Op:
    """`F.mse_loss(x, target)`, the mean over elements.

    Would have caught bf16 mse_loss that raises on a CPU (torch 2.5), and a sum of squares that leaves fp16 before it
    is divided (`long_reduction`).
    """
    shape = (64, 2048) if draw.variant == "long_reduction" else (8, 8)
    return Op(fn=_mse, args={"x": Arg(draw.normal(*shape), grad=True), "target": Arg(draw.normal(*shape))})


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target, ignore_index=_IGNORED)


def _mse(x: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(x, target)


PROBES: tuple[Probe, ...] = (
    Probe("op.cross_entropy", cross_entropy, ("base", "ignore_index", "large_values", "long_reduction")),
    Probe("op.mse", mse, ("base", "long_reduction")),
)
