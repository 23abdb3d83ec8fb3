"""Where a probe's inputs come from: one fixed grid of values that every precision holds exactly."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

SMALLEST, LARGEST = 2.0**-14, 2.0**15


def on_grid(values: Tensor) -> Tensor:
    """The values with a bf16 mantissa, 0 below 2^-14 and at most 2^15 in magnitude: float64, exact in fp16 too."""
    rounded = values.to(torch.bfloat16).double().clamp(-LARGEST, LARGEST)
    return torch.where(rounded.abs() < SMALLEST, 0.0, rounded)


@dataclass(frozen=True)
class Draw:
    """A stream of inputs seeded from `probe[variant]` alone, so that every precision gets the same values.

    Everything is on the CPU: float64 on the grid, or int64. `salt` gives other streams, for calibration.
    """

    probe: str
    variant: str = "base"
    salt: int = 0
    _source: np.random.Generator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        text = f"{self.probe}[{self.variant}]" + (f"#{self.salt}" if self.salt else "")
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
        object.__setattr__(self, "_source", np.random.default_rng(seed))

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normal values with this standard deviation, on the grid."""
        return _never_zero(on_grid(scale * self._normal(shape)))

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Values between low and high, on the grid."""
        return _never_zero(on_grid(torch.from_numpy(np.asarray(self._source.uniform(low, high, shape)))))

    def gain(self, *shape: int) -> Tensor:
        """Values between 0.75 and 1.25, for affine weights: a weight that is ignored must show."""
        return self.uniform(*shape, low=0.75, high=1.25)

    def integers(self, *shape: int, low: int = 0, high: int) -> Tensor:
        """Integers, low <= value < high: int64."""
        return torch.from_numpy(np.asarray(self._source.integers(low, high, shape)))

    def small_integers(self, *shape: int) -> Tensor:
        """Whole numbers from -2 to 2 as float64: sums of up to 64 products are whole and exact in every precision."""
        return _never_zero(self.integers(*shape, low=-2, high=3).double())

    def full_mantissa(self, *shape: int) -> Tensor:
        """Normal values with all 24 bits of a float32: rounding an operand to less shows. Not on the grid."""
        return self._normal(shape).float().double()

    def _normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(np.asarray(self._source.standard_normal(shape)))


def _never_zero(values: Tensor) -> Tensor:
    if values.numel() and not values.any():
        values.view(-1)[0] = 1.0
    return values
