"""Images of other sizes: `op.interpolate`, `op.grid_sample` and `op.pad`."""

from __future__ import annotations

import functools
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.probes.inputs import AUTOCAST, channels_last, dense, low, poisoned, transposed, unit
from amp_probe.suite import Probe

_MODES: dict[str, dict[str, Any]] = {
    "base": {"size": (9, 11), "mode": "bilinear"},
    "aligned": {"size": (9, 11), "mode": "bilinear", "align_corners": True},
    "nearest": {"scale_factor": 2.0, "mode": "nearest"},
    "bicubic": {"size": (9, 11), "mode": "bicubic"},
    "area": {"size": (3, 2), "mode": "area"},
    "antialias": {"size": (3, 3), "mode": "bilinear", "antialias": True},
    "antialias_bicubic": {"size": (3, 3), "mode": "bicubic", "antialias": True},
    "long_reduction": {"size": (80, 70), "mode": "nearest"},
    "long_reduction_bilinear": {"size": (80, 70), "mode": "bilinear"},
}
_LONG = ("long_reduction", "long_reduction_bilinear")
_PADS: dict[str, tuple[tuple[int, ...], str]] = {
    "base": ((2, 1, 1, 3), "constant"),
    "reflect": ((2, 1, 1, 3), "reflect"),
    "replicate": ((2, 1, 1, 3), "replicate"),
    "circular": ((2, 1, 1, 3), "circular"),
    "long_reduction": ((60, 60, 60, 60), "replicate"),
}


def interpolate(draw: Draw) -> Op:
    """`F.interpolate` in every mode, up and down.

    Would have caught pytorch#175489 (antialiased interpolation in half on a CPU), positions that are computed in the
    low dtype, and gradients of a pixel that are summed there (`long_reduction`: thousands of pixels from one).
    """
    options = _MODES.get(draw.variant, _MODES["base"])
    shape = (2, 3, 1, 1) if draw.variant in _LONG else (2, 5, 5, 7)
    return Op(fn=lambda x: F.interpolate(x, **options), args={"x": _image(draw, draw.normal(*shape))})


def grid_sample(draw: Draw) -> Op:
    """`F.grid_sample(x, grid)`: bilinear, with zeros or the border outside.

    Would have caught positions that are computed in the low dtype (`fine_positions`: by bf16 a pixel off), gradients
    that are added there when every position is the same (`long_reduction`: pytorch#198199 for images), and a float32
    grid with a low image, on CUDA's list of promoted operators (`mixed_operands`).
    """
    padding = "border" if draw.variant in ("border", "long_reduction") else "zeros"
    sample = functools.partial(F.grid_sample, padding_mode=padding, align_corners=False)
    x, grid = _image(draw, draw.normal(2, 5, 4, 8)), _quarters(draw, 2, 6, 7)
    if draw.variant == "fine_positions":
        x, grid = _image(draw, draw.normal(2, 3, 64, 48)), draw.uniform(2, 6, 7, 2, low=-1.0, high=1.0)
    if draw.variant == "long_reduction":
        grid = _quarters(draw, 1, 1, 1).expand(2, 80, 63, 2).contiguous()
    args = {"x": x, "grid": Arg(grid, grad=True)}
    if draw.variant == "mixed_operands":
        return Op(fn=lambda x, grid, one: sample(low(x, one), grid), args=args | {"one": unit(8)})
    return Op(fn=lambda x, grid: sample(x, grid), args=args)


def pad(draw: Draw) -> Op:
    """`F.pad` in every mode.

    Would have caught reflection that fp16 lacks on a CPU (torch before 2.6), and gradients of border pixels that are
    summed in the low dtype (`long_reduction`: thousands of copies of a corner).
    """
    amounts, mode = _PADS.get(draw.variant, _PADS["reflect"])
    return Op(fn=lambda x: F.pad(x, amounts, mode=mode), args={"x": _image(draw, draw.normal(2, 3, 5, 6))})


def _quarters(draw: Draw, *shape: int) -> Tensor:
    """Positions whose distances from pixels are quarters and eighths, exact in any dtype, and never on a pixel.

    There a position has two gradients.
    """
    return (2 * draw.integers(*shape, 2, low=-8, high=8).double() + 1) / 16


def _image(draw: Draw, values: Tensor) -> Arg:
    if draw.variant == "channels_last":
        return channels_last(values)
    if draw.variant == "strided":
        return transposed(values)
    return dense(poisoned(values) if draw.variant == "poisoned_row" else values)


_LAYOUTS = ("channels_last", "strided", "poisoned_row")

PROBES: tuple[Probe, ...] = (
    Probe("op.interpolate", interpolate, (*_MODES, *_LAYOUTS)),
    Probe("op.grid_sample", grid_sample, ("base", "border", "fine_positions", "long_reduction", *_LAYOUTS)),
    Probe("op.grid_sample", grid_sample, ("mixed_operands",), AUTOCAST),
    Probe("op.pad", pad, (*_PADS, *_LAYOUTS)),
)
