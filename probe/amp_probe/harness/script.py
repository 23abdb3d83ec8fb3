"""A lab: one cell's device, precision, inputs and stages; and questions that are a sequence of steps, run on it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from amp_matrix.precision import Precision
from amp_matrix.survey import Status
from amp_probe import devices, precisions
from amp_probe.case import Script
from amp_probe.draw import Draw
from amp_probe.harness.recorder import Draft, Recorder, Stopped
from amp_probe.numerics import compare, judgeable, run_ideal

T = TypeVar("T")


@dataclass(frozen=True)
class Lab:
    """Where one cell runs: a device, a precision, the source of inputs, and the recorder that gets the stages."""

    device: torch.device
    precision: Precision
    draw: Draw
    recorder: Recorder

    @property
    def storage(self) -> torch.dtype:
        """The dtype of parameters and inputs."""
        return precisions.storage(self.precision)

    @property
    def low(self) -> torch.dtype:
        """The dtype that arithmetic is asked for in."""
        return precisions.low(self.precision)

    @contextmanager
    def stage(self, name: str) -> Iterator[Draft]:
        """One step of the cell, which names it if it crashes; what the device still owes is waited for inside it.

        Raises Stopped where the step raised; the recorder then has its status.
        """
        with self.recorder.stage(name) as draft:
            yield draft
            self.synchronize()

    def enter(self) -> AbstractContextManager[None]:
        """The context in which a forward pass runs in the precision. Raises Fault(inert) where autocast refuses."""
        return precisions.enter(self.precision, self.device)

    def place(self, tensor: Tensor, grad: bool = False) -> Tensor:
        """The values on the device, floating ones in the storage dtype; ValueError where they are not exact there."""
        value = tensor.to(self.storage) if tensor.is_floating_point() else tensor
        if not torch.equal(value.to(tensor.dtype), tensor):
            raise ValueError(f"the probe's inputs are not exact in {precisions.name(self.storage)}")
        return value.to(self.device).detach().clone().requires_grad_(grad)

    def synchronize(self) -> None:
        """Wait for everything given to the device; raises what went wrong there meanwhile."""
        devices.backend(str(self.device)).synchronize(self.device)

    def judge(
        self,
        draft: Draft,
        name: str,
        got: Tensor,
        reference: Tensor,
        ideal: Tensor | Callable[[], Tensor | None] | None = None,
        *,
        floor: float = 0.0,
        eps: float | None = None,
        exact: bool = False,
        beside: bool = False,
    ) -> bool:
        """Judge a tensor against its float64 reference and tell the stage; gives whether it is fine.

        `eps` is the precision's unless given: what an optimizer does is judged in its parameters' own. `exact`: it
        must be equal. `beside`: other tensors of the stage are judged too, so that its reference may be NaN throughout.
        Else such a reference, computed from measured values that are NaN, is a fault of what was measured.
        """
        eps = eps or self.precision.eps
        if not beside and not judgeable(reference):
            draft.fail(Status.INACCURATE, f"{name}: the reference has no value to judge by", "unjudged")
            return False
        judgement = compare(name, got, reference, eps, ideal, floor=floor, exact=exact, beside=beside)
        draft.dtypes[name] = precisions.name(got.dtype)
        draft.errors.append(judgement.error)
        if judgement.status is not Status.OK:
            draft.fail(judgement.status, judgement.reason, judgement.code)
        return judgement.status is Status.OK

    def ideal(self, work: Callable[[], T]) -> Callable[[], T | None]:
        """What the work gives in the ideal run, made when first asked for; None where it could not be, and a note."""

        @functools.cache
        def run() -> T | None:
            try:
                result, kept = run_ideal(work, tf32=self.precision.compute == "tf32")
            except RuntimeError as error:
                self.note(f"no ideal run: {type(error).__name__}")
                return None
            if kept:
                self.note(
                    f"the ideal run kept the device's value of {', '.join(kept)}; the limits are those of a kept call"
                )
            return None if kept else result

        return run

    def note(self, text: str) -> None:
        """Add a line to the outcome's notes, once."""
        if text not in self.recorder.notes:
            self.recorder.notes.append(text)


def run_script(case: Script, lab: Lab) -> None:
    """Run the steps on the lab. What a script raises outside its stages becomes a stage of its own, `script`."""
    try:
        case.run(lab)
    except Stopped:
        raise
    except Exception as error:
        with lab.stage("script"):
            raise error
