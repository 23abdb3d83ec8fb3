"""Distances between rows: `op.cdist` and `op.pairwise_distance`."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.probes.inputs import AUTOCAST, dense, low, poisoned, transposed, unit
from amp_probe.suite import Probe

_WIDTH = 24
_ORDERS = {"order_1": 1.0, "order_inf": float("inf")}


def cdist(draw: Draw) -> Op:
    """`torch.cdist(x, y)` of order 2, by differences up to 25 rows and by a product from there on (`large`).

    Would have caught squares that leave fp16 or vanish (`large_values`, `small_values`), and a low operand beside a
    float32 one (`mixed_operands`).
    """
    rows = 40 if draw.variant == "large" else 16
    args = {"x": _points(draw, rows), "y": _points(draw, rows + 3, poison=False)}
    if draw.variant == "mixed_operands":
        return Op(fn=lambda x, y, one: torch.cdist(low(x, one), y), args=args | {"one": unit(_WIDTH)})
    order = _ORDERS.get(draw.variant, 2.0)
    return Op(fn=lambda x, y: torch.cdist(x, y, p=order), args=args)


def pairwise_distance(draw: Draw) -> Op:
    """`F.pairwise_distance(x, y)` row by row.

    Would have caught the faults of cdist, and an eps of 1e-6 that fp16 does not hold.
    """
    args = {"x": _points(draw, 16), "y": _points(draw, 16)}
    order = _ORDERS.get(draw.variant, 2.0)
    return Op(fn=lambda x, y: F.pairwise_distance(x, y, p=order), args=args)


def _points(draw: Draw, rows: int, poison: bool = True) -> Arg:
    scale = {"large_values": 256.0, "small_values": 2.0**-9}.get(draw.variant, 1.0)
    values = draw.normal(rows, _WIDTH, scale=scale)
    if draw.variant == "strided":
        return transposed(values)
    return dense(poisoned(values, 3) if poison and draw.variant == "poisoned_row" else values)


_COMMON = ("base", "order_1", "strided", "large_values", "small_values", "poisoned_row")

PROBES: tuple[Probe, ...] = (
    Probe("op.cdist", cdist, (*_COMMON, "order_inf", "large")),
    Probe("op.cdist", cdist, ("mixed_operands",), AUTOCAST),
    Probe("op.pairwise_distance", pairwise_distance, _COMMON),
)
