"""Timings of operators: every cell gives an interval, and slower is emulated only where products take the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from amp_matrix.precision import parse
from amp_matrix.survey import Outcome
from amp_probe.case import Timing
from amp_probe.draw import Draw
from amp_probe.harness.recorder import Recorder
from amp_probe.harness.script import Lab
from amp_probe.probes import speed_ops
from amp_probe.suite import Probe

Kernels = Mapping[str, Callable[..., Any]]
PRECISIONS = ("fp32", "bf16-mixed", "fp16-mixed", "bf16-true", "fp16-true")
_CELLS = [pytest.param(p, v, id=f"{p.name}[{v}]") for p in speed_ops.PROBES for v in p.variants]


def _case(probe: Probe, variant: str) -> Timing:
    case = probe.make(Draw(probe.name, variant))
    assert isinstance(case, Timing)
    return case


def _slow(case: Timing) -> Timing:
    """The same work on a device that takes ten milliseconds more for everything but fp32."""

    def build(lab: Lab) -> Callable[[], object]:
        work = case.build(lab)
        if lab.precision.compute == "fp32":
            return work

        def slow() -> object:
            time.sleep(0.01)
            return work()

        return slow

    return replace(case, build=build)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("probe", "variant"), _CELLS)
def test_every_timing_gives_an_interval(
    run_case: Callable[..., Outcome], probe: Probe, variant: str, precision: str
) -> None:
    outcome = run_case(_case(probe, variant), Draw(probe.name, variant), precision)
    if probe.name == "speed.lstm" and outcome.stage == "build":
        pytest.skip(f"no LSTM in {precision} here: {outcome.reason}")
    numbers = outcome.stages[-1].numbers
    assert outcome.status in ("ok", "emulated")
    assert 0.0 < numbers["gain_low"] <= numbers["gain"] <= numbers["gain_high"] < float("inf")
    assert numbers["seconds"] > 0.0


@pytest.mark.parametrize(("probe", "variant"), _CELLS)
def test_slower_is_emulated_only_where_products_take_the_time(
    run_case: Callable[..., Outcome], probe: Probe, variant: str
) -> None:
    outcome = run_case(_slow(_case(probe, variant)), Draw(probe.name, variant), "bf16-true")
    assert outcome.stages[-1].numbers["gain_high"] < 0.8
    expected = "ok" if probe.name == "speed.layer_norm" else "emulated"
    assert (outcome.status, outcome.stage) == (expected, "" if expected == "ok" else "time")


@pytest.mark.parametrize(("name", "call"), [("matmul", "aten::mm"), ("linear", "aten::addmm")])
def test_a_product_through_float32_and_back_is_emulated(run_case: Callable[..., Outcome], name: str, call: str) -> None:
    """A device without low-precision arithmetic: casts, several products, and a cast back."""
    plain = {"aten::mm": torch.ops.aten.mm, "aten::addmm": torch.ops.aten.addmm}[call]

    def kernel(*given: Tensor) -> Tensor:
        if given[0].dtype is torch.float32:
            return plain(*given)
        for _ in range(2):
            out = plain(*(x.float() for x in given))
        return out.to(given[0].dtype)

    probe = next(p for p in speed_ops.PROBES if p.name == f"speed.{name}")
    outcome = run_case(_case(probe, "base"), Draw(probe.name), "bf16-mixed", {call: kernel})
    assert outcome.stages[-1].numbers["gain"] < 0.8


@pytest.mark.parametrize(("probe", "variant"), _CELLS)
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_the_work_runs_in_the_precision(probe: Probe, variant: str, precision: str) -> None:
    """What is timed is bfloat16, and not float32 under its name."""
    lab = Lab(torch.device("cpu"), parse(precision), Draw(probe.name), Recorder(lambda n: None, lambda s: None))
    try:
        output = _case(probe, variant).build(lab)()
    except RuntimeError as error:
        pytest.skip(f"not on this machine: {error}")
    output = output[0] if isinstance(output, tuple) else output
    assert isinstance(output, Tensor)
    assert output.dtype is torch.bfloat16
    assert not output.requires_grad


def test_they_run_alone_and_not_in_the_quick_suite() -> None:
    assert all(p.alone and p.suite == "core" for p in speed_ops.PROBES)
