"""Laws of the policy: worse or less evidence never makes a precision eligible, and no evidence makes it raise."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import msgspec
from evidence import NOW, cell, known, timed
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from strategies import cells, environments, reals, surveys, texts

from amp_matrix import essential
from amp_matrix.decide import decide
from amp_matrix.matrix import Known, select
from amp_matrix.plan import Plan, Prefer, Task
from amp_matrix.precision import COMPUTES, Precision
from amp_matrix.survey import SEVERITY, Cell, Environment, Stage, Status, conclude

BASE = known()
TASKS = st.sampled_from(essential.TASKS)
PREFERS: SearchStrategy[Prefer] = st.sampled_from(["speed", "memory"])
STAGES = ("build", "infer", "forward", "backward")


def eligible(facts: Mapping[str, Known], task: Task) -> set[str]:
    return {p for p in COMPUTES if essential.first_blocker(facts, p, task, NOW) is None}


def with_stages(fact: Known, statuses: tuple[Status, ...]) -> Known:
    stages = tuple(Stage(name, status) for name, status in zip(STAGES, statuses, strict=True))
    return msgspec.structs.replace(fact, cell=msgspec.structs.replace(fact.cell, outcome=conclude(stages)))


@st.composite
def mostly_working(draw: st.DrawFn) -> dict[str, Known]:
    """Everything works but for a few cells, each with some status in each of its stages."""
    names = draw(st.lists(st.sampled_from(sorted(BASE)), max_size=4, unique=True))
    statuses = st.tuples(*[st.sampled_from(Status) for _ in STAGES])
    return {**BASE, **{name: with_stages(BASE[name], draw(statuses)) for name in names}}


@given(mostly_working(), st.data(), TASKS)
def test_making_a_stage_worse_makes_nothing_eligible(facts: dict[str, Known], data: st.DataObject, task: Task) -> None:
    name = data.draw(st.sampled_from(sorted(facts)))
    before = tuple(s.status or Status.OK for s in facts[name].cell.outcome.stages)
    before += (Status.OK,) * (len(STAGES) - len(before))
    after = tuple(data.draw(st.sampled_from(SEVERITY[: SEVERITY.index(status) + 1])) for status in before)
    better = {**facts, name: with_stages(facts[name], before)}
    worse = {**facts, name: with_stages(facts[name], after)}
    assert eligible(worse, task) <= eligible(better, task)


@given(mostly_working(), st.data(), TASKS, PREFERS)
def test_a_worse_cell_never_leads_to_a_precision_that_was_not_eligible(
    facts: dict[str, Known], data: st.DataObject, task: Task, prefer: Prefer
) -> None:
    name = data.draw(st.sampled_from(sorted(facts)))
    worse = {**facts, name: with_stages(facts[name], (Status.CRASH,) * len(STAGES))}
    plan = decide(worse, NOW, device="cpu", task=task, prefer=prefer)
    assert plan.evidence is None or plan.precision in eligible(facts, task)


@given(mostly_working(), st.data(), TASKS, PREFERS)
def test_removing_cells_makes_nothing_bolder(
    facts: dict[str, Known], data: st.DataObject, task: Task, prefer: Prefer
) -> None:
    gone = data.draw(st.sets(st.sampled_from(sorted(facts)), max_size=3))
    less = {name: fact for name, fact in facts.items() if name not in gone}
    assert eligible(less, task) <= eligible(facts, task)
    plan = decide(less, NOW, device="cpu", task=task, prefer=prefer)
    assert plan.precision == "fp32" or plan.precision in eligible(facts, task)


@given(mostly_working(), TASKS, PREFERS)
def test_what_is_chosen_is_eligible_and_everything_else_is_explained(
    facts: dict[str, Known], task: Task, prefer: Prefer
) -> None:
    plan = decide(facts, NOW, device="cpu", task=task, prefer=prefer)
    assert (plan.evidence is not None) is (plan.precision in eligible(facts, task))
    assert plan.evidence is not None or plan.precision == "fp32"
    assert [r.precision for r in plan.rejected] == [p for p in COMPUTES if p != plan.precision]
    for r in plan.rejected:
        assert r.reason
        assert (r.status == "ok") is (not r.cell)


@given(st.dictionaries(st.sampled_from(COMPUTES[1:]), st.tuples(reals, reals)), TASKS)
def test_speed_is_preferred_only_where_it_was_measured(gains: dict[str, tuple[float, float]], task: Task) -> None:
    name = "train_step" if task == "train" else "infer"
    changes = [timed(f"speed.{name}@{p}", float(low), float(high)) for p, (low, high) in gains.items()]
    plan = decide(known(*changes, gains={}), NOW, device="cpu", task=task)
    if plan.precision == "fp32":
        return
    assert plan.gain is not None
    assert 1.1 < plan.gain.low <= plan.gain.high < math.inf
    assert all(plan.gain.high >= float(low) for _, (low, high) in gains.items() if 1.1 < low <= high < math.inf)


FP8 = st.sampled_from(["bf16-mixed", "bf16-mixed+te-mxfp8", "fp16-mixed+te-nvfp4", "fp32", "bf16-true"])


@st.composite
def anything(draw: st.DrawFn) -> tuple[dict[str, Known], Environment]:
    """Any surveys at all, and an environment that may or may not be theirs."""
    found = draw(st.lists(surveys(cell=cells(precision=FP8)), max_size=3))
    now = draw(st.sampled_from([s.environment for s in found]) if found else environments())
    return select(found, draw(st.sampled_from([None, now.identity]))), now


@settings(max_examples=200)
@given(
    anything(),
    TASKS,
    PREFERS,
    st.booleans(),
    st.lists(st.sampled_from(["op.softmax", "op.softmax[large]", "x", "", "op.lstm"]), max_size=2),
    st.lists(surveys(), max_size=2),
    reals,
)
def test_no_evidence_makes_it_raise(
    evidence: tuple[dict[str, Known], Environment],
    task: Task,
    prefer: Prefer,
    allow_fp8: bool,
    needs: list[str],
    others: list[object],
    at: float,
) -> None:
    facts, now = evidence
    plan = decide(
        facts,
        now,
        device="cpu",
        task=task,
        prefer=prefer,
        allow_fp8=allow_fp8,
        needs=needs,
        others=others,  # type: ignore[arg-type]
        at=float(at),
    )
    explained(plan)
    assert plan.precision == "fp32"
    assert allow_fp8 or all("+" not in r.precision for r in plan.rejected)


@given(st.dictionaries(st.sampled_from(sorted(BASE)), cells(precision=FP8), max_size=5), TASKS, PREFERS)
def test_a_mapping_that_lies_never_makes_it_raise(lies: dict[str, Cell], task: Task, prefer: Prefer) -> None:
    facts = {**BASE, **{k: msgspec.structs.replace(BASE[k], cell=c) for k, c in lies.items()}}
    explained(decide(facts, NOW, device="cpu", task=task, prefer=prefer, allow_fp8=True))


@given(st.sampled_from(COMPUTES), texts, texts, texts)
def test_any_text_in_a_reason_is_one_line(precision: str, reason: str, code: str, started: str) -> None:
    assume(reason or code)
    name = f"op.gelu@{precision}"
    facts = known(cell(name, Stage("forward", Status.ERROR, reason=reason, code=code)))
    facts = {k: msgspec.structs.replace(v, started=started) for k, v in facts.items()}
    plan = decide(facts, NOW, device="cpu", at=0.0)
    explained(plan)
    assert all(len(line.splitlines()) == 1 for line in (plan.reason, *plan.caveats, *(r.reason for r in plan.rejected)))


def explained(plan: Plan) -> None:
    """A plan says itself in words and in JSON, and names a precision that there is."""
    assert Precision(plan.precision, plan.fp8)
    assert plan.explain()
    json.loads(plan.to_json(), parse_constant=lambda name: 1 / 0)
