"""What the structs themselves refuse, and what stages add up to."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import stages

from amp_matrix.survey import SEVERITY, Cell, Evidence, Outcome, Stage, Status, conclude, not_run, worst

ORDER = ["crash", "timeout", "error", "nonfinite", "inaccurate", "inert", "unsupported", "not_run", "emulated", "ok"]


def test_the_closed_set_in_order() -> None:
    assert [str(s) for s in SEVERITY] == ORDER


@given(st.lists(st.sampled_from(Status)))
def test_worst_is_one_of_them_and_none_is_worse(statuses: list[Status]) -> None:
    found = worst(statuses)
    assert found is Status.NOT_RUN if not statuses else found in statuses
    assert all(SEVERITY.index(found) <= SEVERITY.index(s) for s in statuses)


@given(st.lists(stages(), min_size=1, max_size=4))
def test_an_outcome_blames_the_first_stage_of_the_worst_status(many: list[Stage]) -> None:
    outcome = conclude(many)
    assert outcome.status is worst(s.status for s in many if s.status)
    if outcome.status is Status.OK:
        assert (outcome.stage, outcome.reason) == ("", "")
    else:
        blamed = next(s for s in many if s.status is outcome.status)
        assert (outcome.stage, outcome.reason, outcome.code) == (blamed.name, blamed.reason, blamed.code)


def test_no_outcome_is_better_or_worse_than_its_stages() -> None:
    for claimed, real in itertools.permutations(Status, 2):
        with pytest.raises(ValueError, match=f"status is {claimed}, but the worst of the stages is {real}"):
            Outcome(status=claimed, stages=(Stage(name="forward", status=real),))


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.NOT_RUN])
def test_no_status_without_a_stage(status: Status) -> None:
    with pytest.raises(ValueError, match="no stage gave it"):
        Outcome(status=status)


def test_a_simulated_cell_has_no_status_and_every_other_has() -> None:
    fields: dict[str, Any] = {"probe": "op.softmax", "precision": "fp32", "tier": "stress", "revision": 1}
    unseen, ran = Outcome(status=None), conclude([Stage(name="forward")])
    assert Cell(**fields, outcome=unseen, evidence="simulated").id == "op.softmax@fp32"
    pairs: list[tuple[Outcome, Evidence]] = [(unseen, "measured"), (unseen, "claimed"), (ran, "simulated")]
    for outcome, evidence in pairs:
        with pytest.raises(ValueError, match="simulated"):
            Cell(**fields, outcome=outcome, evidence=evidence)


def test_structs_are_frozen() -> None:
    with pytest.raises(AttributeError):
        not_run("filtered out", "filtered").status = Status.OK  # type: ignore[misc]
    assert not msgspec.structs.asdict(not_run("why", "filtered"))["stages"]
