"""A model and a loss on one batch: gradients at any parameters, in float64 and in the ideal, and their judgement."""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from amp_matrix.survey import Status
from amp_probe import precisions
from amp_probe.draw import Draw, on_grid
from amp_probe.harness.recorder import Draft
from amp_probe.harness.script import Lab
from amp_probe.numerics import gradient_floor

Named = Mapping[str, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
NEGLIGIBLE = 1e-6
"""A tensor whose reference gradient is under this part of the largest (by rms) need not have one, or move."""


@dataclass(frozen=True)
class Problem:
    """A model (float32 on the CPU, parameters on the grid), its loss, and a batch (inputs, target).

    Buffers are statistics that a forward pass in training updates and does not read, as batch norm's are.
    """

    module: nn.Module
    loss: Loss
    batch: tuple[Tensor, Tensor]

    def exact(self, values: Named, buffers: Named | None = None) -> tuple[float, dict[str, Tensor]]:
        """The loss and the gradients at some parameters, in float64 on the CPU.

        `buffers`, if given, are float64 on the CPU and updated in place by the forward pass.
        """
        wide = {name: float64(value) for name, value in values.items()}
        statistics = self.buffers(self.module) if buffers is None else buffers
        loss, found = self._gradients(wide, statistics, self.batch, nullcontext(), 1.0)
        return float(loss), found

    @staticmethod
    def buffers(module: nn.Module) -> dict[str, Tensor]:
        """A copy of a module's buffers on the CPU, floating ones in float64."""
        copies = {name: buffer.detach().cpu().clone() for name, buffer in module.named_buffers()}
        return {name: b.double() if b.is_floating_point() else b for name, b in copies.items()}

    def ideal(self, lab: Lab, values: Named, scale: float = 1.0) -> Callable[[], dict[str, Tensor] | None]:
        """The ideal's gradients at some parameters, on demand: the loss times `scale` is differentiated.

        It differentiates the plain model with copies of the parameters, so nothing that was done to the model on the
        device (a wrapper, a hook, a stale cast of a weight) is in it.
        """
        frozen = {name: value.detach().clone() for name, value in values.items()}
        batch = (lab.place(self.batch[0]), lab.place(self.batch[1]))
        buffers = {
            name: lab.place(b.double() if b.is_floating_point() else b) for name, b in self.module.named_buffers()
        }
        return lab.ideal(lambda: self._gradients(frozen, buffers, batch, lab.enter(), scale)[1])

    def on(self, lab: Lab) -> nn.Module:
        """A copy of the model on the lab's device, in the storage dtype."""
        return copy.deepcopy(self.module).to(lab.device, lab.storage)

    def _gradients(
        self,
        values: Named,
        buffers: Named,
        batch: tuple[Tensor, Tensor],
        context: AbstractContextManager[None],
        scale: float,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        leaves = {name: value.detach().clone().requires_grad_() for name, value in values.items()}
        with context:
            loss = self.loss(functional_call(self.module, {**leaves, **buffers}, (batch[0],)), batch[1])
        found = torch.autograd.grad(loss * scale, list(leaves.values()))
        return loss.detach(), {name: g / scale for name, g in zip(leaves, found, strict=True)}


def problem(model: Callable[[], nn.Module], loss: Loss, batch: tuple[Tensor, Tensor], draw: Draw) -> Problem:
    """Build the model from the draw's seed, the same in every precision, and put its parameters on the grid."""
    text = f"model of {draw.probe}[{draw.variant}]#{draw.salt}"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big"))
        module = model()
    for parameter in module.parameters():
        parameter.data = on_grid(parameter.data.double()).float()
    return Problem(module, loss, batch)


def float64(tensor: Tensor) -> Tensor:
    """A copy of the values in float64 on the CPU (there first: mps has no float64)."""
    return tensor.detach().cpu().double().clone()


def rms(tensor: Tensor) -> float:
    """The root of the mean square."""
    return float(tensor.double().square().mean().sqrt())


def counting(gradients: Named) -> set[str]:
    """The names of the tensors whose gradient is more than NEGLIGIBLE beside the largest."""
    sizes = {name: rms(g) for name, g in gradients.items()}
    return {name for name, size in sizes.items() if size > NEGLIGIBLE * max(sizes.values())}


def judge_gradients(
    lab: Lab,
    draft: Draft,
    module: nn.Module,
    right: Named,
    ideal: Callable[[], dict[str, Tensor] | None],
) -> None:
    """Judge what stands in every parameter's `grad`: there, of the parameter's dtype, not all zero, and right."""
    floor, counts = gradient_floor(right.values()), counting(right)
    for name, parameter in module.named_parameters():
        wrong = _missing(name, parameter, name in counts)
        if wrong is not None:
            draft.fail(*wrong)
        if parameter.grad is not None:
            best = functools.partial(_of, ideal, name)
            lab.judge(draft, f"grad {name}", parameter.grad, right[name], best, floor=floor)


def judge_buffers(lab: Lab, draft: Draft, module: nn.Module, right: Named) -> None:
    """Judge every buffer of a module after a forward pass: float statistics by their errors, counts exactly."""
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            lab.judge(draft, f"buffer {name}", buffer, right[name])
        elif not torch.equal(buffer.cpu(), right[name]):
            draft.fail(
                Status.INACCURATE, f"the buffer {name} is {buffer.tolist()}, not {right[name].tolist()}", "exact"
            )


def _missing(name: str, parameter: nn.Parameter, counts: bool) -> tuple[Status, str, str] | None:
    gradient = parameter.grad
    if gradient is None:
        return (Status.INACCURATE, f"{name} got no gradient", "no_gradient")
    if gradient.dtype != parameter.dtype:
        got, wanted = precisions.name(gradient.dtype), precisions.name(parameter.dtype)
        return (Status.INERT, f"the gradient of {name} is {got}, {name} is {wanted}", "dtype")
    if counts and not gradient.any():
        return (Status.INACCURATE, f"the gradient of {name} is all zeros", "zero_gradient")
    return None


def _of(ideal: Callable[[], dict[str, Tensor] | None], name: str) -> Tensor | None:
    found = ideal()
    return None if found is None else found[name]
