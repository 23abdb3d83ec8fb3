"""The same answer twice: variants `repeat` (in one process) and `fresh` (in a new one) of operators that promise it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from amp_matrix.precision import parse
from amp_matrix.survey import Status
from amp_probe import precisions
from amp_probe.case import Case, Op, Script
from amp_probe.draw import Draw
from amp_probe.harness.fresh import answer
from amp_probe.harness.op import place
from amp_probe.harness.recorder import Draft, Recorder
from amp_probe.harness.script import Lab
from amp_probe.probes import activation, attention, conv, loss, matmul, norm
from amp_probe.suite import Probe

_MAKERS: dict[str, Callable[[Draw], Case]] = {
    "op.matmul": matmul.matmul,
    "op.linear": matmul.linear,
    "op.conv2d": conv.conv2d,
    "op.softmax": activation.softmax,
    "op.gelu": activation.gelu,
    "op.layer_norm": norm.layer_norm,
    "op.attention": attention.attention,
    "op.cross_entropy": loss.cross_entropy,
}
_FORWARD_ONLY = ("op.conv2d", "op.attention")
"""Their backwards may add in any order on a GPU, and say so."""


def twice(draw: Draw) -> Script:
    """The base cell's outputs and gradients, computed twice from the same inputs, bit for bit.

    Would have caught memory that is read before it is written, a kernel that another choice is made for the second
    time, and sums whose order is left to chance.
    """
    return Script(run=_twice)


def fresh(draw: Draw) -> Script:
    """The base cell's outputs and gradients, here and in a new process, bit for bit.

    Would have caught answers that depend on what ran before: tuning, caches, and memory that is read before it is
    written.
    """
    return Script(run=_fresh)


def digest(probe: str, precision: str, device: str) -> str:
    """SHA-256 of everything that the probe's base cell gives: what a fresh process prints."""
    torch.set_num_threads(1)
    lab = Lab(torch.device(device), parse(precision), Draw(probe), Recorder(lambda name: None, lambda stage: None))
    return _digest(_results(lab, *_prepared(lab)))


def _twice(lab: Lab) -> None:
    with lab.stage("build"):
        case, inputs = _prepared(lab)
    with lab.stage("first"):
        first = _results(lab, case, inputs)
    with lab.stage("second") as draft:
        for _ in range(2):
            _compare(draft, first, _results(lab, case, inputs))


def _fresh(lab: Lab) -> None:
    with lab.stage("here"):
        here = _digest(_results(lab, *_prepared(lab)))
    with lab.stage("fresh") as draft:
        names = (lab.draw.probe, str(lab.precision), str(lab.device))
        if answer("amp_probe.probes.repeat:digest", *names) != here:
            draft.fail(Status.INACCURATE, "a new process gives another answer", "repeat")


def _prepared(lab: Lab) -> tuple[Op, dict[str, Tensor]]:
    case = _MAKERS[lab.draw.probe](Draw(lab.draw.probe))
    assert isinstance(case, Op)
    return case, {name: place(arg, lab.storage, lab.device) for name, arg in case.args.items()}


def _results(lab: Lab, case: Op, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Output and gradients by name, on the CPU."""
    with lab.enter():
        out = case.fn(**inputs)
    assert isinstance(out, Tensor)
    asked = {n: t for n, t in inputs.items() if t.requires_grad and lab.draw.probe not in _FORWARD_ONLY}
    cotangent = Draw("repeat.cotangent").normal(*out.shape).to(out.dtype).to(out.device)
    gradients = torch.autograd.grad(out, list(asked.values()), cotangent) if asked else ()
    lab.synchronize()
    return {"output": out.detach().cpu()} | {f"grad {n}": g.cpu() for n, g in zip(asked, gradients, strict=True)}


def _compare(draft: Draft, first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    for name, tensor in first.items():
        draft.dtypes[name] = precisions.name(tensor.dtype)
        if not torch.equal(_bits(tensor), _bits(second[name])):
            count = int((tensor != second[name]).sum())
            draft.fail(Status.INACCURATE, f"{name}: {count} values differ from the first time", "repeat")


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _digest(results: dict[str, Tensor]) -> str:
    parts = (bytes(_bits(tensor).tolist()) for tensor in results.values())
    return hashlib.sha256(functools.reduce(bytes.__add__, parts)).hexdigest()


PROBES: tuple[Probe, ...] = (
    *(Probe(name, twice, ("repeat",)) for name in _MAKERS),
    *(Probe(name, fresh, ("fresh",), timeout=90.0, suite="full") for name in _MAKERS),
)
