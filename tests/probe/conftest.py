"""Shared by the tests of probes: one cell run in this process, and devices whose kernels are wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from amp_matrix.precision import parse
from amp_matrix.survey import Outcome, TensorError
from amp_probe.case import Case, Op, Script, Timing, Training
from amp_probe.draw import Draw
from amp_probe.harness.op import run_op
from amp_probe.harness.recorder import Recorder, Stopped
from amp_probe.harness.script import Lab, run_script
from amp_probe.harness.timing import run_timing
from amp_probe.harness.training import run_training

Kernels = Mapping[str, Callable[..., Any]]


class Device(TorchDispatchMode):
    """A device on which some ATen calls on anything but float64 do something else. The ideal's float64 is untouched."""

    def __init__(self, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
        kernel = self.kernels.get(func._schema.name, func)
        wide = tensors and tensors[0].dtype is torch.float64
        return (func if wide else kernel)(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Numeric cells run on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run_cell() -> Callable[..., Outcome]:
    """run_cell(case, draw, precision, kernels={}): the outcome of an operator's cell, with wrong kernels if any."""

    def run(case: Op, draw: Draw, precision: str, kernels: Kernels | None = None) -> Outcome:
        lab = Lab(torch.device("cpu"), parse(precision), draw, Recorder(lambda name: None, lambda stage: None))
        with Device(kernels) if kernels else nullcontext(), suppress(Stopped):
            run_op(case, lab)
        return lab.recorder.outcome()

    return run


@pytest.fixture
def errors() -> Callable[[Outcome], dict[tuple[str, str], TensorError]]:
    """errors(outcome): every judged tensor by (stage, name)."""
    return lambda outcome: {(s.name, e.name): e for s in outcome.stages for e in s.errors}


@pytest.fixture
def run_case() -> Callable[..., Outcome]:
    """run_case(case, draw, precision, kernels={}): the outcome of a cell of any kind, with wrong kernels if any."""

    def run(case: Case, draw: Draw, precision: str, kernels: Kernels | None = None) -> Outcome:
        lab = Lab(torch.device("cpu"), parse(precision), draw, Recorder(lambda name: None, lambda stage: None))
        with Device(kernels) if kernels else nullcontext(), suppress(Stopped):
            match case:
                case Training():
                    run_training(case, lab)
                case Script():
                    run_script(case, lab)
                case Timing():
                    run_timing(case, lab)
                case Op():
                    run_op(case, lab)
        return lab.recorder.outcome()

    return run
