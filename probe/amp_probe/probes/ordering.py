"""Values by rank: `op.sort`, `op.topk`, `op.max`, over rows whose values are all different."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.probes.inputs import dense, distinct, poisoned, transposed
from amp_probe.suite import Probe

Ranked = Callable[[Tensor], tuple[Tensor, Tensor]]


def sort(draw: Draw) -> Op:
    """`x.sort(-1)`, values and indices, also descending.

    Would have caught keys that are compared after rounding, indices that do not belong to their values, and rows that
    take another kernel from some length on (`large`).
    """
    return _ranked(draw, lambda x: x.sort(-1, descending=draw.variant == "descending"))


def topk(draw: Draw) -> Op:
    """`x.topk(5)`, as samplers and mixtures of experts do.

    Would have caught the faults of sort, and experts that differ between precisions though their scores do not.
    """
    return _ranked(draw, lambda x: x.topk(5, -1))


def largest(draw: Draw) -> Op:
    """`x.max(-1)`, values and indices.

    Would have caught an index that does not belong to its value, and NaN that is skipped in one row or spread to others
    (`poisoned_row`).
    """
    return _ranked(draw, lambda x: x.max(-1))


def cummax(draw: Draw) -> Op:
    """`x.cummax(-1)`, whose backward adds up the gradients of every place that a value leads.

    Would have caught those sums in the low dtype (`long_reduction`: one value leads thousands of places).
    """
    if draw.variant == "long_reduction":
        x = draw.uniform(4, 5000)
        x[:, 0] = 2.0
        return Op(fn=lambda x: x.cummax(-1).values, args={"x": dense(x)})
    return Op(fn=lambda x: x.cummax(-1).values, args={"x": _placed(draw, distinct(draw, 16, 40))})


def _ranked(draw: Draw, rank: Ranked) -> Op:
    """Values that must be exact; indices must belong to them: `x[index]` is given too and must be equal."""
    x = distinct(draw, 3, 1700) if draw.variant == "large" else distinct(draw, 16, 40)
    args = {"x": _placed(draw, poisoned(x, 3) if draw.variant == "poisoned_row" else x)}
    return Op(fn=lambda x: _with_indices(x, rank), args=args, invariants=(_belong,))


def _with_indices(x: Tensor, rank: Ranked) -> tuple[Tensor, ...]:
    values, indices = rank(x)
    whole = indices if indices.dim() == x.dim() else indices[..., None]
    return values, x.detach().gather(-1, whole).view_as(values)


def _belong(outputs: tuple[Tensor, ...]) -> str:
    values, by_index = (o.nan_to_num(7.0) for o in outputs)
    return "" if torch.equal(values, by_index) else "the indices do not belong to the values"


def _placed(draw: Draw, values: Tensor) -> Arg:
    return transposed(values) if draw.variant == "strided" else dense(values)


_COMMON = ("base", "strided", "large", "poisoned_row")

PROBES: tuple[Probe, ...] = (
    Probe("op.sort", sort, (*_COMMON, "descending")),
    Probe("op.topk", topk, _COMMON),
    Probe("op.max", largest, _COMMON),
    Probe("op.cummax", cummax, ("base", "strided", "long_reduction")),
)
