"""Operators given float32 beside what autocast made low: `autocast.mixed_operands`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.probes.autocast_regions import MIXED
from amp_probe.suite import Probe

_ROWS, _WIDTH = 24, 32
_Fn = Callable[[Tensor, Tensor, Tensor], Tensor]


def mixed_operands(draw: Draw) -> Op:
    """A float32 tensor and a product that autocast makes low meet in one operator, forward and backward.

    Operators that autocast neither casts nor promotes raise, which is `error`. Would have caught pytorch#42218
    (`float32.index_put(idx, low)`, so `h[idx] = linear(x)`) and its siblings: scatter, index_add, masked_scatter, lerp,
    dot; and those that take it and give a wrong value.
    """
    fn = _FUNCTIONS[draw.variant]

    def work(high: Tensor, x: Tensor, weight: Tensor, rows: Tensor) -> Tensor:
        return fn(high, F.linear(x, weight), rows)

    return Op(
        work,
        {
            "high": Arg(draw.normal(_ROWS, _WIDTH), grad=True),
            "x": Arg(draw.normal(_ROWS, _WIDTH), grad=True),
            "weight": Arg(draw.normal(_WIDTH, _WIDTH, scale=0.25), grad=True),
            "rows": Arg(torch.arange(_ROWS).flip(0)),
        },
    )


def _columns(rows: Tensor) -> Tensor:
    return rows[:, None].expand(-1, _WIDTH)


def _assign(high: Tensor, low: Tensor, rows: Tensor) -> Tensor:
    out = high.clone()
    out[rows[:8]] = low[:8]
    return out


def _slice(high: Tensor, low: Tensor, rows: Tensor) -> Tensor:
    out = high.clone()
    out[4:12] = low[:8]
    return out


_FUNCTIONS: dict[str, _Fn] = {
    "index_put": lambda high, low, rows: high.index_put((rows[:8],), low[:8]),
    "index_put_add": lambda high, low, rows: high.index_put((rows[:8],), low[:8], accumulate=True),
    "assign": _assign,
    "slice": _slice,
    "index_add": lambda high, low, rows: high.index_add(0, rows[:8], low[:8]),
    "index_copy": lambda high, low, rows: high.index_copy(0, rows[:8], low[:8]),
    "scatter": lambda high, low, rows: high.scatter(0, _columns(rows), low),
    "scatter_add": lambda high, low, rows: high.scatter_add(0, _columns(rows), low),
    "masked_scatter": lambda high, low, rows: high.masked_scatter((rows % 2 == 0)[:, None], low),
    "cat": lambda high, low, rows: torch.cat([high, low]),
    "stack": lambda high, low, rows: torch.stack([high, low]),
    "where": lambda high, low, rows: torch.where((rows % 2 == 0)[:, None], high, low),
    "addmm": lambda high, low, rows: torch.addmm(high, low, high.t() @ low),
    "matmul": lambda high, low, rows: high @ low.t(),
    "baddbmm": lambda high, low, rows: torch.baddbmm(high[None], low[None], (high.t() @ low)[None]),
    "einsum": lambda high, low, rows: torch.einsum("ij,kj->ik", high, low),
    "mv": lambda high, low, rows: torch.mv(high, low[0]),
    "dot": lambda high, low, rows: torch.dot(high[0], low[0]),
    "addcmul": lambda high, low, rows: torch.addcmul(high, low, high),
    "lerp": lambda high, low, rows: torch.lerp(high, low, 0.25),
    "add": lambda high, low, rows: high + low,
    "layer_norm": lambda high, low, rows: F.layer_norm(low, (_WIDTH,), high[0], high[1]),
    "mse": lambda high, low, rows: F.mse_loss(low, high),
    "attention": lambda high, low, rows: F.scaled_dot_product_attention(low[None], high[None], high[None]),
    "attention_mask": lambda high, low, rows: F.scaled_dot_product_attention(
        low[None], low[None], low[None], high[:, :_ROWS][None]
    ),
}

PROBES: tuple[Probe, ...] = (Probe("autocast.mixed_operands", mixed_operands, tuple(_FUNCTIONS), MIXED),)
