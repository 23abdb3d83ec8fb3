"""Products of matrices: `op.matmul` and `op.linear`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw, on_grid
from amp_probe.suite import Probe

_BASE = (48, 64, 56)
_SHAPES = {"exact": (48, 48, 40), "square": (512, 512, 512), "k1000": (32, 1000, 24), "row": (1, 64, 40)}
_CLIMBING = ("base", "transposed", "row")
_SIZES_OF_K = (37, 100, 191)
FULL_MANTISSA = ("fp32", "tf32", "bf16-mixed", "fp16-mixed")


def matmul(draw: Draw) -> Op:
    """`torch.matmul(x, y)`: the product that everything else is made of.

    Would have caught pytorch#121583 (bf16 matmul right at one size, "Undefined type BFloat16" at the next), a product
    accumulated in the low dtype, and a downgraded float32 (`full_mantissa`).
    """
    if draw.variant == "poisoned_row":
        return _poisoned(draw, bias=False)
    m, k, n = _SHAPES.get(draw.variant, _BASE)
    return Op(fn=_matmul, args={"x": _first(draw, m, k), "y": _second(draw, k, n)}, exact=draw.variant == "exact")


def linear(draw: Draw) -> Op:
    """`F.linear(x, weight, bias)` over a batch of sequences, with a bias too large to be lost.

    Would have caught pytorch#197796 (`transposed`: a weight that is a transposed view aborts the process), ao#4846 (the
    bias is dropped and training goes on), and oneDNN#5717 (`poisoned_row`: one row of NaN makes others NaN).
    """
    if draw.variant == "poisoned_row":
        return _poisoned(draw, bias=True)
    m, k, n = _SHAPES.get(draw.variant, _BASE)
    shape = (m, k) if draw.variant in ("square", "k1000", "row") else (4, m // 4, k)
    bias = draw.small_integers(n) if draw.variant == "exact" else draw.normal(n, scale=4.0)
    args = {
        "x": _first(draw, *shape),
        "weight": _second(draw, n, k),
        "bias": Arg(bias, grad=True),
    }
    return Op(fn=_linear, args=args, exact=draw.variant == "exact")


def _values(draw: Draw, *shape: int) -> Tensor:
    if draw.variant == "exact":
        return draw.small_integers(*shape)
    return draw.full_mantissa(*shape) if draw.variant == "full_mantissa" else draw.normal(*shape)


def _first(draw: Draw, *shape: int) -> Arg:
    """The first operand: 2 more in the first half of the depth, 2 less in the second.

    With a second operand that is 2 on average, sums climb to 128 and come back: an accumulator in the low dtype, which
    over 64 random terms hides below any limit, loses several eps on the way.
    """
    values = _values(draw, *shape)
    if draw.variant in _CLIMBING:
        half = shape[-1] // 2
        values[..., :half] += 2.0
        values[..., half:] -= 2.0
    return Arg(on_grid(values) if draw.variant in _CLIMBING else values, grad=True)


def _second(draw: Draw, rows: int, columns: int) -> Arg:
    """The second operand, dense or the transposed view of a dense one."""
    climbs, transposed = draw.variant in _CLIMBING, draw.variant == "transposed"
    values = _values(draw, *((columns, rows) if transposed else (rows, columns)))
    values = on_grid(values + 2.0) if climbs else values
    return Arg(values, grad=True, layout=_transpose, strides=(1, rows)) if transposed else Arg(values, grad=True)


def _transpose(t: Tensor) -> Tensor:
    return t.T


def _poisoned(draw: Draw, bias: bool) -> Op:
    """Products of several depths whose row 5 is NaN: every other row must be what it was (oneDNN#5717)."""
    args: dict[str, Arg] = {}
    for k in _SIZES_OF_K:
        x = draw.normal(33, k)
        x[5] = float("nan")
        args |= {f"x{k}": Arg(x, grad=True), f"w{k}": Arg(draw.normal(24, k))}
    if bias:
        args["bias"] = Arg(draw.normal(24, scale=4.0), grad=True)
    return Op(fn=_products, args=args)


def _products(bias: Tensor | None = None, **args: Tensor) -> tuple[Tensor, ...]:
    return tuple(F.linear(args[f"x{k}"], args[f"w{k}"], bias) for k in _SIZES_OF_K)


def _matmul(x: Tensor, y: Tensor) -> Tensor:
    return torch.matmul(x, y)


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, weight, bias)


_VARIANTS = ("base", "exact", "transposed", "square", "k1000", "row", "poisoned_row")

PROBES: tuple[Probe, ...] = (
    Probe("op.matmul", matmul, _VARIANTS),
    Probe("op.matmul", matmul, ("full_mantissa",), FULL_MANTISSA),
    Probe("op.linear", linear, _VARIANTS),
    Probe("op.linear", linear, ("full_mantissa",), FULL_MANTISSA),
)
