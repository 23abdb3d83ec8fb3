"""Look-ups in a table: `op.embedding`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.suite import Probe


def embedding(draw: Draw) -> Op:
    """`F.embedding(index, table)`, whose backward adds up the gradients of every look-up of a row.

    Would have caught pytorch#198199 (`long_reduction`: adding thousands of equal bf16 values sticks at 256).
    """
    if draw.variant == "long_reduction":
        return _many_of_one(draw)
    args = {"index": Arg(draw.integers(6, 8, high=40)), "table": Arg(draw.normal(40, 32), grad=True)}
    return Op(fn=_embedding, args=args)


def _many_of_one(draw: Draw) -> Op:
    """5,000 look-ups of row 3, then their sum: each adds the same gradient to that row, exactly so in float32."""
    index = torch.cat([torch.full((5000,), 3), draw.integers(200, high=40)])
    return Op(fn=_sum, args={"index": Arg(index), "table": Arg(draw.normal(40, 32), grad=True)})


def _embedding(index: Tensor, table: Tensor) -> Tensor:
    return F.embedding(index, table)


def _sum(index: Tensor, table: Tensor) -> Tensor:
    return F.embedding(index, table).sum(0)


PROBES: tuple[Probe, ...] = (Probe("op.embedding", embedding, ("base", "long_reduction")),)
