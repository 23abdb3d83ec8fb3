"""Products besides matmul and linear: `op.bmm`, `op.addmm`, `op.baddbmm`, `op.mv`, `op.einsum`, `op.bilinear`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.probes.inputs import AUTOCAST, dense, expanded, low, placed, poisoned, transposed, unit
from amp_probe.suite import Probe

_DEEP = 32_771
_BATCHED = {"odd": (3, 1, 37, 13), "large": (2, 4, _DEEP, 3), "poisoned_row": (2, 33, 37, 24)}
_FLAT = {"odd": (1, 37, 13), "large": (4, _DEEP, 3), "poisoned_row": (33, 37, 24), "long_reduction": (4096, 8, 12)}


def bmm(draw: Draw) -> Op:
    """`torch.bmm(x, y)`: products in a batch.

    Would have caught pytorch#195163 (`large`: wrong from a depth of 32,767 on), oneDNN#5717 (`poisoned_row`), and a
    batch whose matrices are one expanded matrix (`expanded`).
    """
    b, m, k, n = _BATCHED.get(draw.variant, (4, 16, 40, 24))
    args = {"x": _first(draw, b, m, k), "y": placed(draw, _values(draw, b, k, n))}
    if draw.variant == "expanded":
        args["y"] = expanded(_values(draw, k, n), b, k, n)
    if draw.variant == "mixed_operands":
        return Op(fn=_bmm_of_product, args=args | {"one": unit(k)})
    return Op(fn=lambda x, y: torch.bmm(x, y), args=args, exact=draw.variant == "exact")


def addmm(draw: Draw) -> Op:
    """`torch.addmm(bias, x, y, beta=0.5, alpha=2)`, with a bias too large to be lost.

    Would have caught an epilogue that drops the bias or a factor (ao#4846), and bias gradients that are summed in the
    low dtype over thousands of rows (`long_reduction`).
    """
    m, k, n = _FLAT.get(draw.variant, (24, 40, 32))
    bias = draw.small_integers(n) if draw.variant == "exact" else draw.normal(n, scale=8.0)
    args = {"bias": dense(bias), "x": _first(draw, m, k), "y": placed(draw, _values(draw, k, n))}
    if draw.variant == "mixed_operands":
        return Op(fn=_addmm_of_product, args=args | {"one": unit(k)})
    whole = draw.variant == "exact"
    return Op(fn=_addmm_plain if whole else _addmm, args=args, exact=whole)


def baddbmm(draw: Draw) -> Op:
    """`torch.baddbmm(scores, q, k, alpha=0.25)`: how older attention adds its bias.

    Would have caught a scale that is applied after the sum left fp16 (`large_values`).
    """
    b, m, k, n = _BATCHED.get(draw.variant, (4, 16, 40, 24))
    args = {
        "scores": dense(draw.normal(b, m, n, scale=8.0)),
        "q": _first(draw, b, m, k),
        "k": placed(draw, _values(draw, b, k, n)),
    }
    return Op(fn=lambda scores, q, k: torch.baddbmm(scores, q, k, alpha=0.25), args=args)


def mv(draw: Draw) -> Op:
    """`torch.mv(x, y)`: a matrix by a vector, which takes other kernels than a product of matrices.

    Would have caught a dot product that is summed in the low dtype (`large`).
    """
    m, k, _ = _FLAT.get(draw.variant, (24, 40, 1))
    vector = _values(draw, k)
    args = {"x": _first(draw, m, k), "y": placed(draw, vector)}
    return Op(fn=lambda x, y: torch.mv(x, y), args=args, exact=draw.variant == "exact")


def einsum(draw: Draw) -> Op:
    """`torch.einsum("bhid,bhjd->bhij")`: scores of attention, written as a sum over indices.

    Would have caught a contraction whose permuted operands are read as dense (pytorch#197796, `strided`), and rows
    that are mixed with others (oneDNN#5717, `poisoned_row`).
    """
    b, m, k, n = _BATCHED.get(draw.variant, (4, 16, 40, 24))
    x, y = _first(draw, 2, b, m, k), placed(draw, _values(draw, 2, b, n, k))
    if draw.variant == "mixed_operands":
        return Op(fn=_einsum_of_product, args={"x": x, "y": y, "one": unit(k)})
    return Op(fn=_einsum, args={"x": x, "y": y}, exact=draw.variant == "exact")


def bilinear(draw: Draw) -> Op:
    """`F.bilinear(x, y, weight, bias)`: two inputs and one weight, on CUDA's list of promoted operators.

    Would have caught a list of autocast that lacks it: its low and its float32 operand then meet (`mixed_operands`).
    """
    rows = 4096 if draw.variant == "long_reduction" else 16
    args = {
        "x": dense(draw.normal(rows, 6)),
        "y": dense(draw.normal(rows, 8)),
        "weight": dense(draw.normal(5, 6, 8)),
        "bias": dense(draw.normal(5, scale=4.0)),
    }
    if draw.variant == "mixed_operands":
        return Op(fn=_bilinear_of_product, args=args | {"one": unit(6)})
    return Op(fn=lambda x, y, weight, bias: F.bilinear(x, y, weight, bias), args=args)


def _values(draw: Draw, *shape: int) -> Tensor:
    if draw.variant == "exact":
        return draw.small_integers(*shape)
    if draw.variant == "large_values":
        return draw.uniform(*shape, low=32.0, high=64.0)
    return draw.normal(*shape, scale=2.0**-6 if draw.variant == "small_values" else 1.0)


def _first(draw: Draw, *shape: int) -> Arg:
    """The first operand; with `large_values` sums pass fp16's end and come back: half of the depth is negative."""
    values = _values(draw, *shape)
    if draw.variant == "large_values":
        values[..., shape[-1] // 2 :] *= -1.0
    if draw.variant == "poisoned_row":
        values[..., 5, :] = poisoned(values[..., 5, :].reshape(1, -1), 0).view(values[..., 5, :].shape)
    return transposed(values) if draw.variant == "strided" else dense(values)


def _bmm_of_product(x: Tensor, y: Tensor, one: Tensor) -> Tensor:
    return torch.bmm(low(x, one), y)


def _addmm(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.addmm(bias, x, y, beta=0.5, alpha=2)


def _addmm_plain(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.addmm(bias, x, y)


def _addmm_of_product(bias: Tensor, x: Tensor, y: Tensor, one: Tensor) -> Tensor:
    return torch.addmm(bias, low(x, one), y)


def _einsum(x: Tensor, y: Tensor) -> Tensor:
    return torch.einsum("bhid,bhjd->bhij", x, y)


def _einsum_of_product(x: Tensor, y: Tensor, one: Tensor) -> Tensor:
    return torch.einsum("bhid,bhjd->bhij", low(x, one), y)


def _bilinear_of_product(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, one: Tensor) -> Tensor:
    return F.bilinear(low(x, one), y, weight, bias)


_STRESS = ("large", "odd", "strided", "large_values", "small_values", "poisoned_row")

PROBES: tuple[Probe, ...] = (
    Probe("op.bmm", bmm, ("base", "exact", "expanded", *_STRESS)),
    Probe("op.bmm", bmm, ("mixed_operands",), AUTOCAST),
    Probe("op.addmm", addmm, ("base", "exact", "long_reduction", "odd", "strided", "large_values", "poisoned_row")),
    Probe("op.addmm", addmm, ("mixed_operands",), AUTOCAST),
    Probe("op.baddbmm", baddbmm, ("base", "odd", "large_values", "poisoned_row")),
    Probe("op.mv", mv, ("base", "exact", "large", "odd", "strided", "poisoned_row")),
    Probe("op.einsum", einsum, ("base", "exact", "odd", "strided", "poisoned_row")),
    Probe("op.einsum", einsum, ("mixed_operands",), AUTOCAST),
    Probe("op.bilinear", bilinear, ("base", "long_reduction")),
    Probe("op.bilinear", bilinear, ("mixed_operands",), AUTOCAST),
)
