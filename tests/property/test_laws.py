"""Laws of merge, select and diff, on any surveys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import cells, surveys

from amp_matrix import essential
from amp_matrix.codec import survey_id
from amp_matrix.matrix import UNTRIED, Known, diff, merge, select
from amp_matrix.survey import SEVERITY, Cell, Stage, Status, Survey, conclude

FEW = cells(probes=st.just("op.softmax"), precision=st.just("bf16-mixed"))
MANY = st.lists(surveys(device=st.just("cpu"), cell=FEW, max_cells=3), max_size=4)


def ids(many: Sequence[Survey]) -> list[str]:
    return [survey_id(s) for s in many]


def picked(known: dict[str, Known]) -> dict[str, tuple[str, str]]:
    """What was selected, in a form that NaN does not make unequal to itself."""
    return {name: (k.survey, repr(k.cell)) for name, k in known.items()}


@given(MANY, MANY, MANY)
def test_merge_is_associative(a: list[Survey], b: list[Survey], c: list[Survey]) -> None:
    assert ids(merge(merge(a, b), c)) == ids(merge(a, merge(b, c))) == ids(merge(a, b, c))


@given(MANY, MANY)
def test_merge_is_commutative(a: list[Survey], b: list[Survey]) -> None:
    assert ids(merge(a, b)) == ids(merge(b, a))


@given(MANY)
def test_merge_is_idempotent_and_loses_nothing(a: list[Survey]) -> None:
    once = merge(a)
    assert ids(once) == sorted(set(ids(a))) == ids(merge(once)) == ids(merge(a, a))


@given(MANY, st.randoms())
def test_select_does_not_depend_on_order_or_repeats(many: list[Survey], random: Random) -> None:
    shuffled = [*many, *many]
    random.shuffle(shuffled)
    assert picked(select(many)) == picked(select(shuffled)) == picked(select(merge(many)))


@given(MANY)
def test_select_gives_every_cell_once_and_only_what_is_there(many: list[Survey]) -> None:
    there = {(survey_id(s), c.id) for s in many for c in s.cells}
    known = select(many)
    assert set(known) == {cell for _, cell in there}
    assert {(k.survey, name) for name, k in known.items()} <= there
    assert all(k.cell.id == name for name, k in known.items())


@given(MANY, st.sampled_from(["2.12.0", "2.13.0", "2.14.0"]))
def test_select_by_identity_is_select_of_those_surveys(many: list[Survey], version: str) -> None:
    identity = {"device": "cpu", "torch": version}
    alike = [s for s in many if s.environment.identity == identity]
    assert picked(select(many, identity)) == picked(select(alike))


@given(MANY)
def test_nothing_tried_and_measured_is_hidden_but_by_its_like(many: list[Survey]) -> None:
    for name, known in select(many).items():
        rivals = [(s, c) for s in many for c in s.cells if c.id == name]
        weights = [tried(c.outcome.status, c.outcome.code) and c.evidence == "measured" for _, c in rivals]
        if any(weights):
            assert known.cell.evidence == "measured"
            assert tried(known.cell.outcome.status, known.cell.outcome.code)
            newest = max((s.started, survey_id(s)) for (s, _), w in zip(rivals, weights, strict=True) if w)
            assert (known.started, known.survey) == newest
            same = [
                c.outcome.status
                for (s, c), w in zip(rivals, weights, strict=True)
                if w and (s.started, survey_id(s)) == newest
            ]
            assert all(SEVERITY.index(known.cell.outcome.status) <= SEVERITY.index(s) for s in same)


TIMINGS = st.builds(
    lambda low, wide, status: Stage("time", status, numbers={"gain_low": low, "gain_high": low * wide}),
    st.sampled_from([0.0, 0.3, 0.9, 1.05, 1.2, 2.0, math.nan]),
    st.sampled_from([1.0, 1.2, 4.0]),
    st.sampled_from([Status.OK, Status.OK, Status.EMULATED, Status.ERROR]),
)
TIMED = st.builds(
    lambda stage, revision: Cell("speed.infer", "bf16-mixed", "stress", revision, conclude([stage])),
    TIMINGS,
    st.integers(1, 2),
)
PLACED = st.lists(
    surveys(device=st.sampled_from(["cuda:0", "cuda:1"]), cell=TIMED, max_cells=1), min_size=1, max_size=5
)


@given(PLACED)
def test_a_gain_that_counts_was_seen_on_every_device_after_all_that_speaks_against_it(many: list[Survey]) -> None:
    for known in select(many).values():
        gain = essential.gain(known.cell)
        if known.cell.outcome.status is not Status.OK or gain is None or gain.low <= essential.MARGIN:
            continue
        for device in {s.device for s in many if s.cells}:
            mine = [k for k in timings(many) if k.device == device]
            newest = max(mine, key=lambda k: (k.started, k.survey))
            assert newest.cell.outcome.status is Status.OK
            found = select([s for s in many if s.device == device])[newest.cell.id]
            later = [k for k in mine if (k.started, k.survey) > (found.started, found.survey)]
            bounds = [essential.gain(k.cell) for k in later]
            assert all(k.cell.outcome.status is Status.OK for k in later)
            assert all(b is not None and b.low <= essential.MARGIN < b.high >= gain.low for b in bounds)


def timings(many: Sequence[Survey]) -> list[Known]:
    return [Known(c, survey_id(s), s.started, s.environment, s.device) for s in many for c in s.cells]


@given(MANY, MANY)
def test_diff_turned_round(a: list[Survey], b: list[Survey]) -> None:
    turned = {"added": "removed", "removed": "added"}
    there, back = diff(a, b), diff(b, a)
    assert [(c.device, c.cell, c.before, c.after) for c in there] == [
        (c.device, c.cell, c.after, c.before) for c in back
    ]
    for one, other in zip(there, back, strict=True):
        assert other.kind == turned.get(one.kind, other.kind)
        assert not (one.kind == other.kind == "broken")
        assert not (one.kind == other.kind == "fixed")


@given(MANY, MANY)
def test_diff_of_the_same_is_nothing(a: list[Survey], b: list[Survey]) -> None:
    assert diff(a, a) == ()
    assume(a or b)
    assert diff(merge(a, b), merge(b, a)) == ()


def tried(status: Status | None, code: str) -> bool:
    return not (status is Status.NOT_RUN and code in UNTRIED)
