"""A lab: stages, inputs and judgements; and what happens to a script that raises."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from amp_matrix.precision import parse
from amp_matrix.survey import Outcome
from amp_probe import devices
from amp_probe.case import Script
from amp_probe.draw import Draw
from amp_probe.harness.recorder import Recorder, Stopped
from amp_probe.harness.script import Lab

DRAW = Draw("test.script")


def lab(precision: str = "bf16-true", begun: list[str] | None = None) -> Lab:
    names = [] if begun is None else begun
    return Lab(torch.device("cpu"), parse(precision), DRAW, Recorder(names.append, lambda stage: None))


def test_stages_are_announced_in_order_and_the_first_fault_ends_the_script(run_case: Callable[..., Outcome]) -> None:
    def run(lab: Lab) -> None:
        with lab.stage("one") as draft:
            draft.numbers["x"] = 1.0
        with lab.stage("two"):
            raise RuntimeError("boom")
        with lab.stage("three"):
            raise AssertionError("never reached")

    outcome = run_case(Script(run), DRAW, "fp32")
    assert [(s.name, str(s.status)) for s in outcome.stages] == [("one", "ok"), ("two", "error")]
    assert outcome.stages[1].exception is not None
    assert outcome.stages[1].exception.text == "boom"
    assert outcome.stages[0].numbers == {"x": 1.0}


def test_what_a_script_raises_between_its_stages_is_the_cells_outcome(run_case: Callable[..., Outcome]) -> None:
    def run(lab: Lab) -> None:
        with lab.stage("one"):
            pass
        raise KeyError("lost")

    outcome = run_case(Script(run), DRAW, "fp32")
    assert (outcome.status, outcome.stage) == ("error", "script")


def test_a_stage_begins_before_its_work() -> None:
    begun: list[str] = []
    place = lab(begun=begun)
    with place.stage("first"):
        assert begun == ["first"]


def test_a_float16_parameter_refused_by_the_scaler_is_a_refusal_by_design(run_case: Callable[..., Outcome]) -> None:
    def run(lab: Lab) -> None:
        with lab.stage("unscale"):
            raise ValueError("Attempting to unscale FP16 gradients.")

    assert run_case(Script(run), DRAW, "fp16-true").status == "unsupported"


def test_any_other_value_error_is_an_error(run_case: Callable[..., Outcome]) -> None:
    def run(lab: Lab) -> None:
        with lab.stage("build"):
            raise ValueError("this dtype is not supported")

    assert run_case(Script(run), DRAW, "fp16-true").status == "error"


@pytest.mark.parametrize(
    ("precision", "storage", "low"),
    [
        ("fp32", torch.float32, torch.float32),
        ("bf16-mixed", torch.float32, torch.bfloat16),
        ("fp16-true", torch.float16, torch.float16),
    ],
)
def test_inputs_take_the_storage_dtype_and_integers_stay(
    precision: str, storage: torch.dtype, low: torch.dtype
) -> None:
    place = lab(precision)
    assert (place.storage, place.low) == (storage, low)
    placed = place.place(DRAW.normal(3), grad=True)
    assert (placed.dtype, placed.requires_grad, placed.is_leaf) == (storage, True, True)
    assert place.place(DRAW.integers(3, high=9)).dtype is torch.int64


def test_placing_copies() -> None:
    values = DRAW.normal(3).float()
    placed = lab("fp32").place(values)
    placed.zero_()
    assert values.any()


def test_inputs_that_the_precision_cannot_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="not exact in bfloat16"):
        lab().place(torch.tensor([1.0 + 2.0**-12], dtype=torch.float64))


def test_a_judgement_reaches_the_stage() -> None:
    place, right = lab(), DRAW.normal(64)
    with place.stage("judge") as draft:
        assert place.judge(draft, "same", right.bfloat16(), right)
        assert not place.judge(draft, "other", right.bfloat16() * 1.25, right)
    assert (draft.status, draft.dtypes["other"]) == ("inaccurate", "bfloat16")
    assert [e.name for e in draft.errors] == ["same", "other"]


def test_a_floor_forgives_what_is_small_beside_other_gradients() -> None:
    place, small = lab(), DRAW.normal(64) * 2.0**-12
    with place.stage("judge") as draft:
        assert place.judge(draft, "with", small.bfloat16() * 1.25, small, floor=1.0)
        assert not place.judge(draft, "without", small.bfloat16() * 1.25, small)


def test_what_the_device_still_owes_is_waited_for_inside_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(device: torch.device) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(devices.cpu, "synchronize", late)
    place = lab()
    with pytest.raises(Stopped), place.stage("launch"):
        pass
    assert (place.recorder.outcome().status, place.recorder.outcome().stage) == ("error", "launch")


def test_the_ideal_is_run_once_and_only_when_asked_for() -> None:
    runs: list[int] = []
    ideal = lab().ideal(lambda: runs.append(1))
    assert runs == []
    ideal()
    ideal()
    assert runs == [1]


def test_stopped_goes_through_to_who_runs_the_cell() -> None:
    place = lab()
    with pytest.raises(Stopped), place.stage("one"):
        raise SystemExit(3)
    assert place.recorder.outcome().status == "error"
