"""Linear algebra: for a clean refusal of what no low-precision kernel does, and for what autocast feeds it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw, on_grid
from amp_probe.probes.inputs import AUTOCAST, dense, low, transposed, unit
from amp_probe.suite import Probe

_SIZE = 8
Decomposition = Callable[[Tensor], Tensor | tuple[Tensor, ...]]


def inverse(draw: Draw) -> Op:
    """`torch.linalg.inv` of well-conditioned matrices.

    Would have caught low matrices from a product that autocast hands on as they are (`of_product`): not implemented,
    in the words of the kernel, in the middle of a training.
    """
    return _decomposed(draw, torch.linalg.inv)


def determinant(draw: Draw) -> Op:
    """`torch.linalg.slogdet` of well-conditioned matrices: the logarithm of the determinant.

    Would have caught the faults of inv.
    """
    return _decomposed(draw, lambda x: torch.linalg.slogdet(x)[1])


def qr(draw: Draw) -> Op:
    """`torch.linalg.qr`, with the signs that make it unique.

    Would have caught the faults of inv, and a Q that is not orthogonal.
    """
    return _decomposed(draw, _qr)


def svd(draw: Draw) -> Op:
    """`torch.linalg.svd`: the singular values, and what the three factors multiply to.

    Would have caught the faults of inv, and factors that do not belong together.
    """
    return _decomposed(draw, _svd)


def eigh(draw: Draw) -> Op:
    """`torch.linalg.eigvalsh` of symmetric matrices whose eigenvalues are well apart.

    Would have caught the faults of inv.
    """
    return Op(fn=lambda x: torch.linalg.eigvalsh(x), args={"x": dense(_symmetric(draw))})


def cholesky(draw: Draw) -> Op:
    """`torch.linalg.cholesky` of symmetric, positive matrices.

    Would have caught the faults of inv, and a matrix that rounding has made indefinite.
    """
    if draw.variant == "of_product":
        return Op(
            fn=lambda x, one: torch.linalg.cholesky(low(x, one)),
            args={"x": dense(_symmetric(draw)), "one": unit(_SIZE)},
        )
    return Op(fn=lambda x: torch.linalg.cholesky(x), args={"x": dense(_symmetric(draw))})


def solve(draw: Draw) -> Op:
    """`torch.linalg.solve(x, y)` of well-conditioned systems.

    Would have caught the faults of inv, and a low right side beside a float32 matrix (`mixed_operands`).
    """
    args = {"x": _matrix(draw), "y": dense(draw.normal(3, _SIZE, 5))}
    if draw.variant == "mixed_operands":
        return Op(fn=lambda x, y, one: torch.linalg.solve(x, low(one, y)), args=args | {"one": unit(_SIZE)})
    return Op(fn=lambda x, y: torch.linalg.solve(x, y), args=args)


def _decomposed(draw: Draw, function: Decomposition) -> Op:
    if draw.variant == "of_product":
        return Op(fn=lambda x, one: function(low(x, one)), args={"x": _matrix(draw), "one": unit(_SIZE)})
    return Op(fn=lambda x: function(x), args={"x": _matrix(draw)})


def _matrix(draw: Draw) -> Arg:
    """Matrices whose singular values are well apart, from 4 to 11."""
    values = on_grid(torch.diag(torch.arange(4.0, 4.0 + _SIZE)) + draw.normal(3, _SIZE, _SIZE, scale=0.25))
    return transposed(values) if draw.variant == "strided" else dense(values)


def _symmetric(draw: Draw) -> Tensor:
    values = draw.normal(3, _SIZE, _SIZE, scale=0.25)
    return on_grid(torch.diag(torch.arange(4.0, 4.0 + _SIZE)) + values + values.mT)


def _qr(x: Tensor) -> tuple[Tensor, ...]:
    q, r = torch.linalg.qr(x)
    sign = r.diagonal(dim1=-2, dim2=-1).detach().sign()
    return q * sign[..., None, :], r * sign[..., None]


def _svd(x: Tensor) -> tuple[Tensor, ...]:
    u, s, vh = torch.linalg.svd(x)
    return s, (u * s[..., None, :]) @ vh


_COMMON = ("base", "strided")
_LOW = ("of_product",)

PROBES: tuple[Probe, ...] = (
    Probe("op.inv", inverse, _COMMON),
    Probe("op.inv", inverse, _LOW, AUTOCAST),
    Probe("op.slogdet", determinant, _COMMON),
    Probe("op.slogdet", determinant, _LOW, AUTOCAST),
    Probe("op.qr", qr, _COMMON),
    Probe("op.qr", qr, _LOW, AUTOCAST),
    Probe("op.svd", svd, _COMMON),
    Probe("op.eigh", eigh, ("base",)),
    Probe("op.cholesky", cholesky, ("base",)),
    Probe("op.cholesky", cholesky, _LOW, AUTOCAST),
    Probe("op.solve", solve, _COMMON),
    Probe("op.solve", solve, ("mixed_operands",), AUTOCAST),
)
