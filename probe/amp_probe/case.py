"""What a probe returns. A probe describes its question as one of these; the harness runs the stages and judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from amp_probe.harness.script import Lab

Layout = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Arg:
    """One argument of an operator: its float64 (or integer, bool) values on the CPU, and how the device gets them.

    `grad`: its gradient is judged. `keep`: stays float32 in `*-true` (mixed operands). `layout`: turns the dense tensor
    on the device into the wanted view; `strides` is what that view must then have, asserted before the run.
    """

    value: Tensor
    grad: bool = False
    keep: bool = False
    layout: Layout | None = None
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Op:
    """A pure function of tensors, judged forward under no_grad (`infer`), with a graph (`forward`), and `backward`.

    `fn` takes the args by name and gives a tensor or a tuple of tensors. `exact`: the result is exactly representable
    and must be equal. `invariants`: each gets the outputs on the CPU and says what is wrong with them, or "".
    `wide`: the output may be wider than the precision asked for in `*-true` (a loss that is float32 by design).
    `shows_tf32`: products of operands that TF32 must round, so that an error as small as fp32's means it was not used.
    """

    fn: Callable[..., Tensor | tuple[Tensor, ...]]
    args: Mapping[str, Arg]
    backward: bool = True
    exact: bool = False
    wide: bool = False
    shows_tf32: bool = False
    invariants: tuple[Callable[[tuple[Tensor, ...]], str], ...] = ()


@dataclass(frozen=True)
class Training:
    """A model trained for some steps, re-anchored against float64 at steps 0, 5, 20 and the last (docs/numerics.md).

    `model` builds it in float32 on the CPU (the harness seeds and puts parameters on the grid); `batch` is the float64
    or integer (inputs, target) used at every step; `optimizer` is in the form that users write.
    """

    model: Callable[[], nn.Module]
    batch: tuple[Tensor, Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    steps: int = 40


@dataclass(frozen=True)
class Script:
    """A question that is a sequence of steps: `run` opens stages on the lab and tells it what must hold."""

    run: Callable[[Lab], None]


@dataclass(frozen=True)
class Timing:
    """Work to time in the precision against fp32. `build` gets a lab and gives the callable to time, warm.

    `products`: products take most of its time, so that slower than fp32 is `emulated`. Where memory bounds the work
    (layer_norm, softmax) a ratio says nothing of that.
    """

    build: Callable[[Lab], Callable[[], Any]]
    products: bool = True


Case = Op | Training | Script | Timing
