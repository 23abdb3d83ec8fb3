"""Sums of many kinds: plain, running, of exponentials, of squares, and those that broadcasting hides in backward."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw, on_grid
from amp_probe.probes.inputs import ONES, SMALL, dense, poisoned, transposed
from amp_probe.suite import Probe


def total(draw: Draw) -> Op:
    """`x.sum(-1)`.

    Would have caught sums that stick: 256 ones and no more in bf16 (`long_reduction`, pytorch#198199), over rows that
    are dense or not (`outer_long_reduction`).
    """
    if draw.variant == "outer_long_reduction":
        return Op(fn=lambda x: x.sum(0), args={"x": dense(draw.uniform(ONES, 40, low=0.5))})
    return _rows(draw, lambda x: x.sum(-1))


def mean(draw: Draw) -> Op:
    """`x.mean(-1)`.

    Would have caught a sum that leaves fp16 before it is divided (`large_values`), or sticks (`long_reduction`).
    """
    return _rows(draw, lambda x: x.mean(-1))


def broadcast(draw: Draw) -> Op:
    """`x * scale + shift`, whose backward sums over every row that the two were repeated for.

    Would have caught those sums in the low dtype (`long_reduction`): scales and shifts of hand-written norms.
    """
    rows = ONES if draw.variant == "long_reduction" else 40
    args = {"x": dense(draw.normal(rows, 40)), "scale": dense(draw.gain(40)), "shift": dense(draw.normal(40))}
    return Op(fn=lambda x, scale, shift: x * scale + shift, args=args)


def cumsum(draw: Draw) -> Op:
    """`x.cumsum(-1)`.

    Would have caught a running sum that is kept in the low dtype (`long_reduction`).
    """
    return _rows(draw, lambda x: x.cumsum(-1))


def cumprod(draw: Draw) -> Op:
    """`x.cumprod(-1)` of factors near 1.

    Would have caught a running product that is rounded at every step (`long_reduction`).
    """
    return Op(fn=lambda x: x.cumprod(-1), args={"x": _placed(draw, _near_one(draw))})


def prod(draw: Draw) -> Op:
    """`x.prod(-1)` of factors near 1.

    Would have caught a product that is rounded at every step (`long_reduction`).
    """
    return Op(fn=lambda x: x.prod(-1), args={"x": _placed(draw, _near_one(draw))})


def logsumexp(draw: Draw) -> Op:
    """`x.logsumexp(-1)`.

    Would have caught exponentials taken before the maximum is subtracted (`large_values` for fp16, `huge_values` for
    every format), and sums that stick (`long_reduction`).
    """
    return _logarithms(draw, lambda x: x.logsumexp(-1))


def logcumsumexp(draw: Draw) -> Op:
    """`x.logcumsumexp(-1)`.

    Would have caught the faults of logsumexp in its running form, and a backward that fp16 lacks (torch before 2.9).
    """
    return _logarithms(draw, lambda x: x.logcumsumexp(-1))


def var(draw: Draw) -> Op:
    """`x.var(-1)` and `x.std(-1)`.

    Would have caught variances taken as a difference of large numbers (`offset`), squares that leave fp16
    (`large_values`) or vanish (`small_values`), and sums of squares that stick (`long_reduction`).
    """
    if draw.variant == "small_values":  # a variance that fp16 still holds, of squares that it hardly does
        return Op(fn=_var_std, args={"x": dense(draw.normal(16, 60, scale=2.0**-9))})
    return _rows(draw, _var_std)


def norm(draw: Draw) -> Op:
    """`torch.linalg.vector_norm` of order 2, and of order 1 or infinity (`order_1`, `order_inf`).

    Would have caught squares that leave fp16 or vanish before the root (`large_values`, `small_values`: the norm that
    clipping divides by is then inf or 0), and sums that stick (`long_reduction`).
    """
    order = {"order_1": 1.0, "order_inf": float("inf")}.get(draw.variant, 2.0)
    return _rows(draw, lambda x: torch.linalg.vector_norm(x, order, dim=-1))


def normalize(draw: Draw) -> Op:
    """`F.normalize(x)`: rows of length 1.

    Would have caught the faults of norm, and an eps of 1e-12 that is 0 in fp16.
    """
    return _rows(draw, lambda x: F.normalize(x, dim=-1))


def _rows(draw: Draw, function: Callable[[Tensor], Tensor | tuple[Tensor, ...]]) -> Op:
    return Op(fn=lambda x: function(x), args={"x": _placed(draw, _values(draw))}, exact=draw.variant == "exact")


def _var_std(x: Tensor) -> tuple[Tensor, ...]:
    return x.var(-1), x.std(-1)


def _logarithms(draw: Draw, function: Callable[[Tensor], Tensor]) -> Op:
    """Of exponentials. Backward is exp(x - result): what rounding a huge result leaves of it is no question."""
    large = draw.variant == "large_values"
    values = draw.uniform(16, 60, low=10.0, high=20.0) if large else _values(draw)
    return Op(fn=lambda x: function(x), args={"x": _placed(draw, values)}, backward=draw.variant != "huge_values")


def _near_one(draw: Draw) -> Tensor:
    long = draw.variant == "long_reduction"
    return draw.uniform(40, 800, low=0.96875, high=1.03125) if long else draw.uniform(40, 12, low=0.75, high=1.25)


def _values(draw: Draw) -> Tensor:
    """Rows of 60; of thousands, all positive, where sums must not stick."""
    if draw.variant == "exact":
        return draw.small_integers(16, 48)
    if draw.variant.endswith("long_reduction"):
        return draw.uniform(2, ONES, low=0.5, high=1.0)
    if draw.variant == "offset":
        return on_grid(draw.normal(16, 60) + 64.0)
    if draw.variant in ("large_values", "huge_values"):
        return draw.uniform(16, 60, low=1024.0, high=4096.0)
    return draw.normal(16, 60, scale=SMALL if draw.variant == "small_values" else 1.0)


def _placed(draw: Draw, values: Tensor) -> Arg:
    if draw.variant == "strided":
        return transposed(values)
    return dense(poisoned(values) if draw.variant == "poisoned_row" else values)


_COMMON = ("base", "strided", "long_reduction")

PROBES: tuple[Probe, ...] = (
    Probe("op.sum", total, (*_COMMON, "exact", "outer_long_reduction")),
    Probe("op.mean", mean, (*_COMMON, "large_values")),
    Probe("op.broadcast", broadcast, ("base", "long_reduction")),
    Probe("op.cumsum", cumsum, (*_COMMON, "exact", "poisoned_row")),
    Probe("op.cumprod", cumprod, _COMMON),
    Probe("op.prod", prod, _COMMON),
    Probe("op.logsumexp", logsumexp, (*_COMMON, "large_values", "huge_values", "poisoned_row")),
    Probe("op.logcumsumexp", logcumsumexp, (*_COMMON, "large_values", "huge_values", "poisoned_row")),
    Probe("op.var", var, (*_COMMON, "offset", "large_values", "small_values")),
    Probe("op.norm", norm, (*_COMMON, "order_1", "order_inf", "large_values", "small_values", "poisoned_row")),
    Probe("op.normalize", normalize, (*_COMMON, "large_values", "small_values", "poisoned_row")),
)
