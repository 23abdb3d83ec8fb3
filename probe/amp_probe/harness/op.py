"""Runs a pure operator: build, infer, forward and backward, each judged against one float64 reference."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from amp_matrix.survey import Status
from amp_probe import precisions
from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.harness.recorder import Draft, Fault
from amp_probe.ideal import math_path
from amp_probe.numerics import gradient_floor, judgeable

if TYPE_CHECKING:
    from amp_probe.harness.script import Lab

Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Reference:
    """What float64 on the CPU gives: outputs, the cotangents fed back (None for whole numbers), and gradients."""

    outputs: tuple[Tensor, ...]
    cotangents: tuple[Tensor | None, ...]
    gradients: Mapping[str, Tensor]
    floor: float


_references: dict[Draw, Reference] = {}
_KEPT_REFERENCES = 8  # a plan takes a variant's precisions one after the other


def run_op(case: Op, lab: Lab) -> None:
    """Run the stages of an operator on the lab's device in its precision; the lab's recorder gets them.

    The reference is computed once per probe and variant in a process: inputs do not depend on the precision.
    """
    run = _Run(case, lab)
    with lab.recorder.stage("build"):
        run.build()
    with lab.recorder.stage("infer") as draft:
        run.infer(draft)
    with lab.recorder.stage("forward") as draft:
        outputs = run.forward(draft)
    if case.backward:
        with lab.recorder.stage("backward") as draft:
            run.backward(draft, outputs)


def reference(case: Op, draw: Draw) -> Reference:
    """The float64 reference of a probe's variant, from this process's cache where it stands there."""
    if draw not in _references:
        while len(_references) >= _KEPT_REFERENCES:
            _references.pop(next(iter(_references)))
        _references[draw] = _compute(case, draw)
    return _references[draw]


def place(arg: Arg, dtype: torch.dtype, device: torch.device) -> Tensor:
    """One argument on the device: cast without loss, moved, then given its layout, whose strides must come out.

    Raises ValueError where the values are not exact in the dtype, Fault(error) where the strides are others.
    """
    value = arg.value.to(dtype) if arg.value.is_floating_point() else arg.value.clone()
    if not torch.equal(arg.value.nan_to_num(7.0), value.to(arg.value.dtype).nan_to_num(7.0)):
        raise ValueError(f"the probe's inputs are not exact in {precisions.name(dtype)}")
    tensor = value.to(device)
    tensor = arg.layout(tensor) if arg.layout else tensor
    if arg.strides is not None and tensor.stride() != arg.strides:
        raise Fault(Status.ERROR, f"the layout came out with strides {tensor.stride()}, not {arg.strides}", "strides")
    return tensor.detach().requires_grad_(arg.grad)


class _Run:
    """One cell while it runs."""

    def __init__(self, case: Op, lab: Lab) -> None:
        self.case, self.lab = case, lab
        self.inputs: dict[str, Tensor] = {}

    def build(self) -> None:
        self.reference = reference(self.case, self.lab.draw)
        for name, arg in self.case.args.items():
            self.inputs[name] = place(arg, torch.float32 if arg.keep else self.lab.storage, self.lab.device)
        self.lab.synchronize()

    def infer(self, draft: Draft) -> None:
        with torch.no_grad():
            outputs = self._call()
        self.lab.synchronize()
        self._judge_outputs(draft, outputs, torch.no_grad()(self._call))

    def forward(self, draft: Draft) -> tuple[Tensor, ...]:
        outputs = self._call()
        self.lab.synchronize()
        self._judge_outputs(draft, outputs, lambda: tuple(o.detach() for o in self._call()))
        return outputs

    def backward(self, draft: Draft, outputs: tuple[Tensor, ...]) -> None:
        gradients = self._gradients(outputs)
        self.lab.synchronize()
        names = [name for name, arg in self.case.args.items() if arg.grad]
        for name, gradient in zip(names, gradients, strict=True):
            self._check_gradient(draft, name, gradient)
        whole = [
            (f"grad {n}", g, self.reference.gradients[n])
            for n, g in zip(names, gradients, strict=True)
            if g is not None
        ]
        places = [i for i, g in enumerate(gradients) if g is not None]

        def again() -> Sequence[Tensor | None]:
            found = self._gradients(self._call())
            return [found[i] for i in places]

        self._judge(draft, whole, again, self.reference.floor)

    def _call(self) -> tuple[Tensor, ...]:
        with self.lab.enter():
            return _tuple(self.case.fn(**self.inputs))

    def _gradients(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        fed = _fed(outputs, self.reference.cotangents)
        asked = [t for t in self.inputs.values() if t.requires_grad]
        cotangents = [c.to(o.dtype).to(o.device) for o, c in fed]
        return torch.autograd.grad([o for o, _ in fed], asked, cotangents, allow_unused=True)

    def _check_gradient(self, draft: Draft, name: str, gradient: Tensor | None) -> None:
        wanted = self.inputs[name].dtype
        if gradient is None:
            draft.fail(Status.INACCURATE, f"{name} got no gradient", "no_gradient")
        elif gradient.dtype != wanted:
            got = precisions.name(gradient.dtype)
            draft.fail(Status.INERT, f"the gradient of {name} is {got}, {name} is {precisions.name(wanted)}", "dtype")

    def _judge_outputs(
        self, draft: Draft, outputs: tuple[Tensor, ...], again: Callable[[], Sequence[Tensor | None]]
    ) -> None:
        odd = precisions.in_effect(self.lab.precision, outputs, wide=self.case.wide)
        if odd:
            draft.fail(Status.INERT, odd, "dtype")
        if len(outputs) != len(self.reference.outputs):
            raise Fault(Status.INACCURATE, f"{len(outputs)} outputs, not {len(self.reference.outputs)}", "shape")
        names = ["output"] if len(outputs) == 1 else [f"output {i}" for i in range(len(outputs))]
        self._judge(draft, list(zip(names, outputs, self.reference.outputs, strict=True)), again, 0.0)
        on_cpu = tuple(o.detach().cpu() for o in outputs) if self.case.invariants else ()
        for invariant in self.case.invariants:
            wrong = invariant(on_cpu)
            if wrong:
                draft.fail(Status.INACCURATE, wrong, "invariant")

    def _judge(
        self,
        draft: Draft,
        tensors: Sequence[tuple[str, Tensor, Tensor]],
        again: Callable[[], Sequence[Tensor | None]],
        floor: float,
    ) -> None:
        """Judge tensors, each with its reference; `again` does the stage's work once more and gives them in order.

        Raises ValueError where no reference has a value to judge by.
        """
        if tensors and not any(judgeable(right) for _, _, right in tensors):
            raise ValueError("no reference of this stage has a value to judge by")
        ideal, before = self.lab.ideal(again), len(draft.errors)
        for index, (name, got, right) in enumerate(tensors):
            best = functools.partial(_at, ideal, index)
            self.lab.judge(draft, name, got, right, best, floor=floor, exact=self.case.exact, beside=True)
        if self.case.shows_tf32 and self.lab.precision.compute == "tf32":
            wrong = precisions.tf32_absent(draft.errors[before:])
            if wrong:
                draft.fail(Status.INERT, wrong, "tf32")


def _compute(case: Op, draw: Draw) -> Reference:
    cpu = torch.device("cpu")
    inputs = {name: place(arg, torch.float64, cpu) for name, arg in case.args.items()}
    with math_path():
        outputs = _tuple(case.fn(**inputs))
        source = Draw(f"{draw.probe}.cotangent", draw.variant, draw.salt)
        cotangents = tuple(_cotangent(o, source, case.exact) for o in outputs)
        gradients = _reference_gradients(inputs, outputs, cotangents) if case.backward else {}
    return Reference(tuple(o.detach() for o in outputs), cotangents, gradients, gradient_floor(gradients.values()))


def _reference_gradients(
    inputs: Inputs, outputs: tuple[Tensor, ...], cotangents: tuple[Tensor | None, ...]
) -> dict[str, Tensor]:
    fed = _fed(outputs, cotangents)
    asked = {name: tensor for name, tensor in inputs.items() if tensor.requires_grad}
    found = torch.autograd.grad([o for o, _ in fed], list(asked.values()), [c for _, c in fed])
    return dict(zip(asked, found, strict=True))


def _fed(outputs: Sequence[Tensor], cotangents: Sequence[Tensor | None]) -> list[tuple[Tensor, Tensor]]:
    return [(o, c) for o, c in zip(outputs, cotangents, strict=True) if c is not None]


def _cotangent(output: Tensor, source: Draw, exact: bool) -> Tensor | None:
    """What is fed back into an output: normal values, whole ones for exact cases, 1 to 2 for a single number."""
    if not output.requires_grad:
        return None
    if exact:
        return source.small_integers(*output.shape)
    return source.normal(*output.shape) if output.dim() else source.uniform(low=1.0, high=2.0)


def _tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _at(results: Callable[[], Sequence[Tensor | None] | None], index: int) -> Tensor | None:
    found = results()
    return None if found is None else found[index]
