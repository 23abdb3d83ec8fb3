"""Writes by index: put, add, copy and scatter, with the sums that repeated indices make."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.probes.inputs import AUTOCAST, ONES, dense, low, poisoned, transposed, unit
from amp_probe.suite import Probe

_ROWS, _WIDTH = 12, 24
Write = Callable[[Tensor, Tensor, Tensor], Tensor]


def index_put(draw: Draw) -> Op:
    """`x.index_put((index,), values, accumulate=True)`, or without repeats and overwriting (`overwrite`).

    Would have caught pytorch#198199 (`long_reduction`: 5,000 bf16 ones give 256) and pytorch#42218 (`mixed_operands`:
    float32 written to from low values inside autocast).
    """
    add = draw.variant != "overwrite"
    return _written(draw, lambda x, index, values: x.index_put((index,), values, accumulate=add))


def index_put_in_place(draw: Draw) -> Op:
    """`x[index] += ...` as users write it: `x.index_put_((index,), values, accumulate=True)` on a clone.

    Would have caught pytorch#198199 in the form that it was reported in.
    """
    return _written(draw, lambda x, index, values: x.clone().index_put_((index,), values, accumulate=True))


def index_add(draw: Draw) -> Op:
    """`x.index_add(0, index, values, alpha=2)`.

    Would have caught pytorch#198199 in another kernel, and pytorch#42218.
    """
    return _written(draw, lambda x, index, values: x.index_add(0, index, values, alpha=2))


def index_copy(draw: Draw) -> Op:
    """`x.index_copy(0, index, values)`.

    Would have caught pytorch#42218 in another kernel.
    """
    return _written(draw, lambda x, index, values: x.index_copy(0, index, values))


def scatter_add(draw: Draw) -> Op:
    """`x.scatter_add(0, index, values)`, how graph networks add up messages.

    Would have caught pytorch#198199 in another kernel, and pytorch#42218 in an operator on CUDA's list.
    """
    return _written(draw, lambda x, index, values: x.scatter_add(0, _wide(index, values), values))


def scatter_reduce(draw: Draw) -> Op:
    """`x.scatter_reduce(0, index, values, "sum")`, or the mean (`mean_long_reduction`).

    Would have caught pytorch#198199 in another kernel, and pytorch#42218.
    """
    how = "mean" if draw.variant.startswith("mean") else "sum"
    return _written(draw, lambda x, index, values: x.scatter_reduce(0, _wide(index, values), values, how))


def scatter(draw: Draw) -> Op:
    """`x.scatter(0, index, values)` without repeats.

    Would have caught pytorch#42218 in another kernel.
    """
    return _written(draw, lambda x, index, values: x.scatter(0, _wide(index, values), values))


def put(draw: Draw) -> Op:
    """`x.put(index, values, accumulate=True)`, by flat positions.

    Would have caught pytorch#198199 in another kernel, and pytorch#42218.
    """
    return _written(draw, lambda x, index, values: x.put(_flat(index, values), values, accumulate=True))


def masked_scatter(draw: Draw) -> Op:
    """`x.masked_scatter(mask, values)`: how images enter the embeddings of a language model.

    Would have caught pytorch#42218 (`mixed_operands`: embeddings are float32, what the vision tower gives is low).
    """
    return _written(draw, _masked_scatter)


def _written(draw: Draw, write: Write) -> Op:
    """Rows written to places: each its own, or repeats (`repeated`), or thousands to one (`long_reduction`)."""
    x = draw.normal(_ROWS, _WIDTH)
    places = draw.uniform(_ROWS).argsort(stable=True)[:8]
    values = draw.normal(8, _WIDTH)
    if draw.variant == "repeated":
        places = draw.integers(8, high=4)
    if draw.variant.endswith("long_reduction"):
        places, values = torch.full((ONES,), 3), torch.ones(ONES, _WIDTH, dtype=torch.float64)
    if draw.variant == "poisoned_row":
        values = poisoned(values)
    args = {"x": _placed(draw, x), "index": Arg(places), "values": _placed(draw, values)}
    if draw.variant == "mixed_operands":
        return Op(fn=lambda x, index, values, one: write(x, index, low(values, one)), args=args | {"one": unit(_WIDTH)})
    return Op(fn=lambda x, index, values: write(x, index, values), args=args)


def _placed(draw: Draw, values: Tensor) -> Arg:
    return transposed(values) if draw.variant == "strided" else dense(values)


def _wide(index: Tensor, values: Tensor) -> Tensor:
    return index[:, None].expand_as(values)


def _flat(index: Tensor, values: Tensor) -> Tensor:
    return index[:, None] * _WIDTH + torch.arange(values.shape[1], device=index.device)


def _masked_scatter(x: Tensor, index: Tensor, values: Tensor) -> Tensor:
    mask = torch.zeros(x.shape[0], 1, dtype=torch.bool, device=x.device).index_fill(0, index, True)
    return x.masked_scatter(mask, values)


_WRITES = ("base", "strided", "poisoned_row")
_SUMS = (*_WRITES, "repeated", "long_reduction")
_MIXED = ("mixed_operands",)

PROBES: tuple[Probe, ...] = (
    Probe("op.index_put", index_put, (*_SUMS, "overwrite")),
    Probe("op.index_put", index_put, _MIXED, AUTOCAST),
    Probe("op.index_put", index_put_in_place, ("in_place_long_reduction",)),
    Probe("op.index_add", index_add, _SUMS),
    Probe("op.index_add", index_add, _MIXED, AUTOCAST),
    Probe("op.index_copy", index_copy, _WRITES),
    Probe("op.index_copy", index_copy, _MIXED, AUTOCAST),
    Probe("op.scatter_add", scatter_add, _SUMS),
    Probe("op.scatter_add", scatter_add, _MIXED, AUTOCAST),
    Probe("op.scatter_reduce", scatter_reduce, (*_SUMS, "mean_long_reduction")),
    Probe("op.scatter_reduce", scatter_reduce, _MIXED, AUTOCAST),
    Probe("op.scatter", scatter, _WRITES),
    Probe("op.scatter", scatter, _MIXED, AUTOCAST),
    Probe("op.put", put, ("base", "repeated", "long_reduction")),
    Probe("op.put", put, _MIXED, AUTOCAST),
    Probe("op.masked_scatter", masked_scatter, _WRITES),
    Probe("op.masked_scatter", masked_scatter, _MIXED, AUTOCAST),
)
