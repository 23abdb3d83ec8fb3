"""Products of matrices: `op.matmul` and `op.linear`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw, on_grid
from amp_probe.probes.inputs import sliced
from amp_probe.suite import Probe

_BASE = (48, 64, 56)
_SHAPES = {
    "exact": (48, 48, 40),
    "square": (512, 512, 512),
    "k1000": (32, 1000, 24),
    "row": (1, 64, 40),
    "odd": (7, 37, 13),
    "large": (4, 32_771, 4),
    "long_reduction": (4096, 8, 12),
}
_CLIMBING = ("base", "transposed", "row")
_SIZES_OF_K = (37, 100, 191)
FULL_MANTISSA = ("fp32", "tf32", "bf16-mixed", "fp16-mixed")


def matmul(draw: Draw) -> Op:
    """`torch.matmul(x, y)`: the product that everything else is made of.

    Would have caught pytorch#121583 (bf16 matmul right at one size, "Undefined type BFloat16" at the next), a product
    accumulated in the low dtype or wrong from a depth of 32,767 on (pytorch#195163, `large`), sums that pass fp16's end
    and come back (`large_values`), operands that are every second column of a tensor (`strided`), and a downgraded
    float32 (`full_mantissa`).
    """
    if draw.variant == "poisoned_row":
        return _poisoned(draw, bias=False)
    m, k, n = _SHAPES.get(draw.variant, _BASE)
    args = {"x": _first(draw, m, k), "y": _second(draw, k, n)}
    return Op(fn=_matmul, args=args, exact=draw.variant == "exact", shows_tf32=draw.variant == "full_mantissa")


def linear(draw: Draw) -> Op:
    """`F.linear(x, weight, bias)` over a batch of sequences, with a bias too large to be lost.

    Would have caught pytorch#197796 (`transposed`: a weight that is a transposed view aborts the process), ao#4846 (the
    bias is dropped and training goes on), oneDNN#5717 (`poisoned_row`: one row of NaN makes others NaN), and gradients
    of weight and bias that are summed in the low dtype over thousands of rows (`long_reduction`).
    """
    if draw.variant == "poisoned_row":
        return _poisoned(draw, bias=True)
    m, k, n = _SHAPES.get(draw.variant, _BASE)
    shape = (m, k) if draw.variant in ("square", "k1000", "row", "odd") else (4, m // 4, k)
    bias = draw.small_integers(n) if draw.variant == "exact" else draw.normal(n, scale=4.0)
    args = {
        "x": _first(draw, *shape),
        "weight": _second(draw, n, k),
        "bias": Arg(bias, grad=True),
    }
    return Op(fn=_linear, args=args, exact=draw.variant == "exact", shows_tf32=draw.variant == "full_mantissa")


def _values(draw: Draw, *shape: int) -> Tensor:
    if draw.variant == "exact":
        return draw.small_integers(*shape)
    if draw.variant == "large_values":
        return draw.uniform(*shape, low=32.0, high=64.0)
    if draw.variant == "full_mantissa":
        return draw.full_mantissa(*shape)
    return draw.normal(*shape, scale=2.0**-6 if draw.variant == "small_values" else 1.0)


def _first(draw: Draw, *shape: int) -> Arg:
    """The first operand: 2 more in the first half of the depth, 2 less in the second.

    With a second operand that is 2 on average, sums climb to 128 and come back: an accumulator in the low dtype, which
    over 64 random terms hides below any limit, loses several eps on the way. `large_values` climb beyond fp16's end.
    """
    values, half = _values(draw, *shape), shape[-1] // 2
    if draw.variant == "large_values":
        values[..., half:] *= -1.0
    if draw.variant == "strided":
        return sliced(values)
    if draw.variant in _CLIMBING:
        values[..., :half] += 2.0
        values[..., half:] -= 2.0
    return Arg(on_grid(values) if draw.variant in _CLIMBING else values, grad=True)


def _second(draw: Draw, rows: int, columns: int) -> Arg:
    """The second operand: dense, or the transposed view of a dense one, or every second column of a wider one."""
    if draw.variant == "strided":
        return sliced(_values(draw, rows, columns))
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


_VARIANTS = ("base", "exact", "transposed", "square", "k1000", "row", "poisoned_row", "odd", "strided", "large_values")

PROBES: tuple[Probe, ...] = (
    Probe("op.matmul", matmul, (*_VARIANTS, "large", "small_values")),
    Probe("op.matmul", matmul, ("full_mantissa",), FULL_MANTISSA),
    Probe("op.linear", linear, (*_VARIANTS, "long_reduction")),
    Probe("op.linear", linear, ("full_mantissa",), FULL_MANTISSA),
)
