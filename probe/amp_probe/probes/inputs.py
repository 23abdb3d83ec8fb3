"""Inputs that families share: values by variant, views of them on the device, and what autocast's products give."""

from __future__ import annotations

import torch
from torch import Tensor

from amp_probe.case import Arg, Layout
from amp_probe.draw import Draw

AUTOCAST = ("fp32", "bf16-mixed", "fp16-mixed")
"""For questions about mixed operands: in `*-true` a float32 operand beside a low one is refused by design."""

POISON = float("nan")
ONES = 5000
"""How many equal contributions go into one sum: a bf16 sum sticks at 256, an fp16 one at 2048 (pytorch#198199)."""

SMALL = 2.0**-11
"""The scale of `small_values`: squares and products of them are subnormal in fp16, or nothing."""


def dense(values: Tensor) -> Arg:
    """The values as they are; their gradient is judged."""
    return Arg(values, grad=True)


def transposed(values: Tensor) -> Arg:
    """The values as a view whose last two dims were swapped."""
    return view(values.mT.contiguous(), lambda t: t.mT)


def sliced(values: Tensor) -> Arg:
    """The values as every second column of a tensor twice as wide, which holds other values between them."""
    return view(torch.stack([values, values.flip(-1)], -1).flatten(-2), lambda t: t[..., ::2])


def expanded(values: Tensor, *shape: int) -> Arg:
    """The values as a view that repeats them without memory: strides of 0. Its gradient is the view's."""
    return view(values, lambda t: t.expand(*shape))


def channels_last(values: Tensor) -> Arg:
    """Images or volumes whose channels lie side by side in memory."""
    form = torch.channels_last if values.dim() == 4 else torch.channels_last_3d
    return view(values, lambda t: t.contiguous(memory_format=form))


def view(stored: Tensor, layout: Layout) -> Arg:
    """A view of stored values, made on the device, which must give it the strides that a CPU does."""
    return Arg(stored, grad=True, layout=layout, strides=layout(stored).stride())


def placed(draw: Draw, values: Tensor) -> Arg:
    """The values in the layout that the variant names: `strided` and `channels_last`, else dense."""
    if draw.variant == "strided":
        return transposed(values) if values.dim() > 1 else sliced(values)
    return channels_last(values) if draw.variant == "channels_last" else dense(values)


def poisoned(values: Tensor, row: int = 1) -> Tensor:
    """The values with one row (sample) of NaN."""
    values = values.clone()
    values[row] = POISON
    return values


def distinct(draw: Draw, rows: int, columns: int) -> Tensor:
    """Rows without ties: magnitudes from 2^-3 to 2^4, both signs, on the grid; at most 1,792 columns."""
    positive = torch.arange(_bits(2.0**-3), _bits(2.0**4), dtype=torch.int16).view(torch.bfloat16).double()
    table = torch.cat([positive, -positive])
    order = [draw.uniform(len(table)).argsort(stable=True)[:columns] for _ in range(rows)]
    return table[torch.stack(order)]


def unit(size: int) -> Arg:
    """The identity: what `low` multiplies by."""
    return Arg(torch.eye(size, dtype=torch.float64))


def low(x: Tensor, one: Tensor) -> Tensor:
    """`x` as a product gives it: unchanged on the grid, but under autocast in the low dtype."""
    return torch.matmul(x, one)


def _bits(value: float) -> int:
    return int(torch.tensor(value, dtype=torch.bfloat16).view(torch.int16))
