"""Reads by index, masks and joins: selections of what is there, whose backwards add up what was read often."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.probes.inputs import AUTOCAST, ONES, dense, low, transposed, unit
from amp_probe.suite import Probe

_ROWS, _WIDTH = 12, 24


def index(draw: Draw) -> Op:
    """`x[index]`, whose backward is index_put.

    Would have caught pytorch#198199 in the backward that nobody wrote (`long_reduction`).
    """
    return _read(draw, lambda x, index: x[index])


def gather(draw: Draw) -> Op:
    """`x.gather(0, index)`, whose backward is scatter_add.

    Would have caught pytorch#198199 in the backward that nobody wrote (`long_reduction`).
    """
    return _read(draw, lambda x, index: x.gather(0, index[:, None].expand(-1, x.shape[1])))


def index_select(draw: Draw) -> Op:
    """`x.index_select(0, index)`, whose backward is index_add.

    Would have caught pytorch#198199 in the backward that nobody wrote (`long_reduction`).
    """
    return _read(draw, lambda x, index: x.index_select(0, index))


def take(draw: Draw) -> Op:
    """`x.take(index)`, by flat positions, whose backward is put.

    Would have caught pytorch#198199 in the backward that nobody wrote (`long_reduction`).
    """
    return _read(draw, lambda x, index: x.take(index))


def repeat(draw: Draw) -> Op:
    """`x.repeat`, `x.repeat_interleave` and `x.expand`, whose backwards add up the copies.

    Would have caught sums of thousands of copies in the low dtype (`long_reduction`).
    """
    times = ONES if draw.variant == "long_reduction" else 5
    return Op(fn=lambda x: _copies(x, times), args={"x": _placed(draw, draw.normal(4, 40 if times < 6 else 8))})


def masked_fill(draw: Draw) -> Op:
    """`x.masked_fill(mask, value)`, with -inf (`infinite`) and over NaN (`over_nan`).

    Would have caught NaN that shines through a mask, forward, or as 0 * NaN backward.
    """
    x, mask = draw.normal(16, 40), draw.integers(16, 40, high=3) == 0
    if draw.variant == "over_nan":
        x = x.masked_fill(mask, float("nan"))
    value = float("-inf") if draw.variant == "infinite" else -2.5
    return Op(fn=lambda x, mask: x.masked_fill(mask, value), args={"x": _placed(draw, x), "mask": Arg(mask)})


def where(draw: Draw) -> Op:
    """`torch.where(mask, x, y)`.

    Would have caught operands that are not promoted (`mixed_operands`), and NaN of the side that is not taken
    (`over_nan`).
    """
    x, mask = draw.normal(16, _WIDTH), draw.integers(16, _WIDTH, high=3) == 0
    if draw.variant == "over_nan":
        x = x.masked_fill(~mask, float("nan"))
    args = {"x": _placed(draw, x), "y": dense(draw.normal(16, _WIDTH)), "mask": Arg(mask)}
    if draw.variant == "mixed_operands":
        return Op(fn=lambda x, y, mask, one: torch.where(mask, x, low(y, one)), args=args | {"one": unit(_WIDTH)})
    return Op(fn=lambda x, y, mask: torch.where(mask, x, y), args=args)


def cat(draw: Draw) -> Op:
    """`torch.cat([x, y])` and `torch.stack([x, y])`.

    Would have caught float32 beside low values, on the list of promoted operators (`mixed_operands`), and views that
    are read as dense (`strided`).
    """
    args = {"x": _placed(draw, draw.normal(16, _WIDTH)), "y": _placed(draw, draw.normal(16, _WIDTH))}
    if draw.variant == "mixed_operands":
        return Op(fn=lambda x, y, one: _joined(x, low(y, one)), args=args | {"one": unit(_WIDTH)})
    return Op(fn=lambda x, y: _joined(x, y), args=args)


def embedding_bag(draw: Draw) -> Op:
    """`F.embedding_bag` of bags with different sizes: their sum, mean and maximum.

    Would have caught pytorch#198199 in the backward of a table's row (`long_reduction`), and a bag of thousands whose
    sum sticks (`bag_long_reduction`).
    """
    mode = {"mean": "mean", "max": "max"}.get(draw.variant, "sum")
    count, high, starts = 30, 40, [0, 7, 7, 20]
    if draw.variant == "long_reduction":
        count, high, starts = ONES, 3, list(range(0, ONES, 20))
    if draw.variant in ("bag_long_reduction", "mean_long_reduction"):
        count, starts, mode = ONES, [0, 60], "mean" if draw.variant.startswith("mean") else "sum"
    table = draw.uniform(40, _WIDTH, low=0.5) if "long" in draw.variant else draw.normal(40, _WIDTH)
    args = {"index": Arg(draw.integers(count, high=high)), "table": dense(table), "starts": Arg(torch.tensor(starts))}
    return Op(fn=lambda index, table, starts: F.embedding_bag(index, table, starts, mode=mode), args=args)


def _read(draw: Draw, read: Callable[[Tensor, Tensor], Tensor]) -> Op:
    """Rows read from places; with `long_reduction` one place thousands of times, summed: equal gradients come back."""
    args = {"x": _placed(draw, draw.normal(_ROWS, _WIDTH))}
    if draw.variant == "long_reduction":
        return Op(fn=lambda x, index: read(x, index).sum(0), args=args | {"index": Arg(torch.full((ONES,), 3))})
    return Op(fn=lambda x, index: read(x, index), args=args | {"index": Arg(draw.integers(20, high=_ROWS))})


def _placed(draw: Draw, values: Tensor) -> Arg:
    return transposed(values) if draw.variant == "strided" else dense(values)


def _copies(x: Tensor, times: int) -> tuple[Tensor, ...]:
    return x.repeat(times, 1).sum(0), x.repeat_interleave(times, 0).sum(0), x.expand(times, *x.shape).sum(0)


def _joined(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return torch.cat([x, y], 1), torch.stack([x, y])


_READS = ("base", "strided", "long_reduction")
_MIXED = ("mixed_operands",)

PROBES: tuple[Probe, ...] = (
    Probe("op.index", index, _READS),
    Probe("op.gather", gather, _READS),
    Probe("op.index_select", index_select, _READS),
    Probe("op.take", take, _READS),
    Probe("op.repeat", repeat, _READS),
    Probe("op.masked_fill", masked_fill, ("base", "strided", "infinite", "over_nan")),
    Probe("op.where", where, ("base", "strided", "over_nan")),
    Probe("op.where", where, _MIXED, AUTOCAST),
    Probe("op.cat", cat, ("base", "strided")),
    Probe("op.cat", cat, _MIXED, AUTOCAST),
    Probe(
        "op.embedding_bag",
        embedding_bag,
        ("base", "mean", "max", "long_reduction", "bag_long_reduction", "mean_long_reduction"),
    ),
)
