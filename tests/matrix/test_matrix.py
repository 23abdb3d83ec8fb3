"""Which evidence counts, and what changed between two matrices."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from amp_matrix.codec import survey_id
from amp_matrix.matrix import UNTRIED, Change, Known, diff, merge, select
from amp_matrix.survey import Cell, Environment, Evidence, Outcome, Stage, Status, Survey, conclude, not_run

HERE = {"device": "cpu", "torch": "2.13.0"}
THERE = {"device": "cpu", "torch": "2.12.0"}
MORNING, NOON, EVENING = (f"2026-01-31T{hour}:00:00Z" for hour in ("08", "12", "18"))
SOFTMAX = "op.softmax@fp32"


def cell(status: Status | None, *, code: str = "", evidence: Evidence = "measured", **changes: Any) -> Cell:
    if status is Status.NOT_RUN:
        outcome = not_run("why", code)
    elif status is None:
        outcome, evidence = Outcome(status=None), "simulated"
    else:
        outcome = conclude([Stage(name="forward", status=status)])
    fields: dict[str, Any] = {"probe": "op.softmax", "precision": "fp32", "tier": "stress", "revision": 1}
    return Cell(**{**fields, **changes}, outcome=outcome, evidence=evidence)


def survey(started: str, *cells: Cell, identity: dict[str, str] = HERE, device: str = "cpu", tool: str = "1") -> Survey:
    return Survey(
        tool=tool,
        device=device,
        suite="core",
        started=started,
        seconds=1.0,
        environment=Environment(identity=identity),
        cells=cells,
    )


def status(*surveys: Survey) -> Status | None:
    """The status that counts, whatever the order of the surveys."""
    found = {select(order, HERE)[SOFTMAX].cell.outcome.status for order in (surveys, surveys[::-1])}
    assert len(found) == 1
    return found.pop()


def test_known_says_where_a_cell_stands() -> None:
    one = survey(NOON, cell(Status.OK), cell(Status.ERROR, variant="large"))
    known = select([one], HERE)
    assert list(known) == [SOFTMAX, "op.softmax[large]@fp32"]
    assert known[SOFTMAX] == Known(one.cells[0], survey_id(one), NOON, one.environment, "cpu")


def test_only_an_equal_identity_counts() -> None:
    for other in (THERE, {**HERE, "more": ""}, {"device": "cpu"}, {}):
        assert select([survey(NOON, cell(Status.OK), identity=other)], HERE) == {}
    both = [survey(MORNING, cell(Status.OK)), survey(NOON, cell(Status.ERROR), identity=THERE)]
    assert select(both, HERE)[SOFTMAX].started == MORNING
    assert select(both, None)[SOFTMAX].started == NOON
    assert select([survey(NOON, cell(Status.OK), identity={})], {})[SOFTMAX].started == NOON


@pytest.mark.parametrize("newer", [s for s in Status if s is not Status.NOT_RUN])
def test_the_newest_counts_better_or_worse(newer: Status) -> None:
    for older in Status:
        assert status(survey(MORNING, cell(older)), survey(NOON, cell(newer))) is newer


def test_at_the_same_time_the_id_decides() -> None:
    two = [survey(NOON, cell(Status.OK), tool="1"), survey(NOON, cell(Status.ERROR), tool="2")]
    assert status(*two) is max(two, key=survey_id).cells[0].outcome.status


@pytest.mark.parametrize("code", UNTRIED)
def test_what_was_not_tried_hides_nothing(code: str) -> None:
    untried = cell(Status.NOT_RUN, code=code)
    for seen in Status:
        assert status(survey(MORNING, cell(seen)), survey(NOON, untried)) is seen
    assert status(survey(MORNING, cell(Status.OK, evidence="claimed")), survey(NOON, untried)) is Status.OK
    assert status(survey(NOON, untried)) is Status.NOT_RUN


@pytest.mark.parametrize("code", ["", "out_of_memory", "device_lost", "raised"])
def test_what_was_tried_and_did_not_run_does_hide(code: str) -> None:
    assert status(survey(MORNING, cell(Status.OK)), survey(NOON, cell(Status.NOT_RUN, code=code))) is Status.NOT_RUN


def test_what_was_not_measured_hides_nothing_that_was() -> None:
    measured = survey(MORNING, cell(Status.ERROR))
    assert status(measured, survey(NOON, cell(Status.OK, evidence="claimed"))) is Status.ERROR
    assert status(measured, survey(NOON, cell(None))) is Status.ERROR
    assert status(survey(MORNING, cell(Status.ERROR, evidence="claimed")), survey(NOON, cell(None))) is None


def test_within_a_survey_the_worst_of_repeats_counts() -> None:
    for order in ([Status.OK, Status.TIMEOUT, Status.ERROR], [Status.TIMEOUT, Status.OK]):
        assert status(survey(NOON, *(cell(s) for s in order))) is Status.TIMEOUT
    assert status(survey(NOON, cell(Status.OK), cell(Status.NOT_RUN, code="raised"))) is Status.NOT_RUN
    assert status(survey(NOON, cell(Status.OK), cell(Status.NOT_RUN, code="filtered"))) is Status.OK
    assert status(survey(NOON, cell(Status.OK), cell(Status.CRASH, evidence="claimed"))) is Status.OK
    assert status(survey(MORNING, cell(Status.ERROR)), survey(NOON, cell(Status.OK), cell(Status.OK))) is Status.OK


@pytest.mark.parametrize("later", [Status.OK, Status.EMULATED])
def test_of_equal_devices_the_worst_counts_whichever_was_measured_last(later: Status) -> None:
    first, second = survey(MORNING, cell(Status.CRASH), device="cuda:1"), survey(NOON, cell(later), device="cuda:0")
    assert status(first, second) is Status.CRASH
    assert status(first, second, survey(EVENING, cell(Status.OK), device="cuda:1")) is later
    assert status(second, survey(EVENING, cell(Status.NOT_RUN, code="filtered"), device="cuda:1")) is later
    assert status(second, survey(EVENING, cell(Status.NOT_RUN, code="device_lost"), device="cuda:1")) is not Status.OK


class TestTimings:
    """Which of a speed cell's timings counts. A gain counts from above 1.1."""

    NAME = "speed.infer@fp32"
    GAIN, NONE, NOISE = (1.5, 1.6), (0.9, 1.1), (0.5, 3.9)

    def timing(self, low: float, high: float, status: Status = Status.OK, **changes: Any) -> Cell:
        stage = Stage(name="time", status=status, numbers={"gain_low": low, "gain_high": high})
        return msgspec.structs.replace(cell(Status.OK, probe="speed.infer", **changes), outcome=conclude([stage]))

    def counts(self, *cells: Cell, surveys: tuple[Survey, ...] = ()) -> Cell:
        """What counts of these, the oldest first, in whatever order they are read."""
        many = [*(survey(when, c) for when, c in zip((MORNING, NOON, EVENING), cells, strict=False)), *surveys]
        found = [select(order, HERE)[self.NAME].cell for order in (many, many[::-1])]
        assert found[0] == found[1]
        return found[0]

    @pytest.mark.parametrize("clear", [GAIN, NONE])
    def test_noise_does_not_hide_what_is_clear(self, clear: tuple[float, float]) -> None:
        told = self.timing(*clear)
        assert self.counts(told, self.timing(*self.NOISE), self.timing(0.6, 3.0)) == told

    def test_the_newest_that_is_clear_counts(self) -> None:
        gain, none, noise = (self.timing(*bounds) for bounds in (self.GAIN, self.NONE, self.NOISE))
        assert self.counts(gain, none, noise) == none
        assert self.counts(none, gain, noise) == gain
        assert self.counts(noise, gain, none) == none

    def test_where_all_is_noise_the_newest_counts(self) -> None:
        assert self.counts(self.timing(*self.NOISE), newest := self.timing(0.6, 3.0)) == newest

    @pytest.mark.parametrize("failure", [s for s in Status if s not in (Status.OK, Status.EMULATED)])
    def test_a_failure_counts_and_nothing_from_before_it_comes_back(self, failure: Status) -> None:
        failed = cell(failure, code="raised", probe="speed.infer")
        gain, noise = self.timing(*self.GAIN), self.timing(*self.NOISE)
        assert self.counts(gain, failed) == failed
        assert self.counts(gain, failed, noise) == noise

    def test_a_timing_of_another_revision_or_under_other_settings_is_another_one(self) -> None:
        noise = self.timing(*self.NOISE)
        assert self.counts(self.timing(*self.GAIN, revision=2), noise) == noise
        under = Environment(HERE, scoped={"allow_fp16_accumulation": "yes"})
        other = msgspec.structs.replace(survey(MORNING, self.timing(*self.GAIN)), environment=under)
        assert self.counts(surveys=(other, survey(NOON, noise))) == noise

    def test_a_gain_above_what_a_later_noisy_timing_leaves_possible_does_not_count(self) -> None:
        noise = self.timing(0.5, 1.2)
        assert self.counts(self.timing(*self.GAIN), noise) == noise
        assert self.counts(gain := self.timing(1.15, 1.3), noise) == gain

    def test_of_equal_devices_the_slowest_counts(self) -> None:
        fast, slow = self.timing(*self.GAIN), self.timing(*self.NONE)
        places = (survey(MORNING, slow, device="cuda:1"), survey(NOON, fast, device="cuda:0"))
        assert self.counts(surveys=places) == slow


def test_merge_keeps_each_once_and_decides_nothing() -> None:
    old, new = survey(MORNING, cell(Status.OK)), survey(NOON, cell(Status.ERROR))
    merged = merge([old, new], [new], [])
    assert merged == tuple(sorted([old, new], key=survey_id))
    assert merge() == ()
    assert merge(merged, merged) == merged


def test_diff_kinds() -> None:
    cases: dict[str, tuple[Status | None, Status | None, str]] = {
        "a": (Status.OK, Status.ERROR, "broken"),
        "b": (Status.OK, Status.EMULATED, "broken"),
        "c": (Status.EMULATED, Status.CRASH, "broken"),
        "d": (Status.ERROR, Status.OK, "fixed"),
        "e": (Status.EMULATED, Status.OK, "fixed"),
        "f": (Status.ERROR, Status.CRASH, "changed"),
        "g": (Status.CRASH, Status.EMULATED, "changed"),
        "h": (Status.OK, Status.NOT_RUN, "changed"),
        "i": (Status.NOT_RUN, Status.OK, "changed"),
        "j": (Status.NOT_RUN, Status.ERROR, "changed"),
        "k": (None, Status.OK, "changed"),
    }
    old = survey(NOON, *(cell(before, probe=f"op.{name}") for name, (before, _, _) in cases.items()))
    new = survey(MORNING, *(cell(after, probe=f"op.{name}") for name, (_, after, _) in cases.items()))
    assert diff([old], [new]) == tuple(
        Change(f"op.{name}@fp32", "cpu", before, after, kind)  # type: ignore[arg-type]
        for name, (before, after, kind) in cases.items()
    )


def test_diff_is_by_device_and_reads_the_newest_of_each_side() -> None:
    old = [
        survey(MORNING, cell(Status.OK)),
        survey(NOON, cell(Status.ERROR)),
        survey(NOON, cell(Status.OK), device="mps"),
    ]
    new = [survey(EVENING, cell(Status.OK)), survey(EVENING, cell(Status.OK), device="xpu:0")]
    assert diff(old, new) == (
        Change(SOFTMAX, "cpu", Status.ERROR, Status.OK, "fixed"),
        Change(SOFTMAX, "mps", Status.OK, None, "removed"),
        Change(SOFTMAX, "xpu:0", None, Status.OK, "added"),
    )
    assert diff(old, old) == ()
    assert diff([], []) == ()
