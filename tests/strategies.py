"""Hypothesis strategies for the record's structs: every value they draw is one that a document may hold."""

from __future__ import annotations

from datetime import datetime, timezone

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from amp_matrix.precision import COMPUTES, RECIPE_HOSTS, RECIPES
from amp_matrix.survey import Cell, Environment, Outcome, Raised, Stage, Status, Survey, TensorError, conclude, not_run

DEVICES = ("cpu", "mps", "cuda:0", "cuda:1", "xpu:0")
STAGES = ("build", "infer", "forward", "backward", "step", "time")
PROBES = ("op.softmax", "op.matmul", "train.mlp", "copy.roundtrip", "opinfo.nn.functional.relu", "speed.train_step")
CODES = ("", "filtered", "missing_dependency", "device_missing", "interrupted", "out_of_memory", "raised")

texts = st.text(max_size=12)
reals = st.floats() | st.integers(-(10**30), 10**30) | st.sampled_from([0.0, -0.0, 5e-324, 1.7976931348623157e308])
"""Everything a type checker lets into a Real: NaN, infinities, whole numbers too."""


def precisions() -> SearchStrategy[str]:
    """Every precision that parses, FP8 recipes included."""
    hosted = [f"{host}+{recipe}" for host in RECIPE_HOSTS for recipe in RECIPES[1:]]
    return st.sampled_from([*COMPUTES, *hosted])


def starts() -> SearchStrategy[str]:
    """A survey's `started`: UTC, whole seconds."""
    moments = st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1), timezones=st.just(timezone.utc))
    return moments.map(lambda m: m.strftime("%Y-%m-%dT%H:%M:%SZ"))


def stages(statuses: SearchStrategy[Status | None] | None = None) -> SearchStrategy[Stage]:
    """One stage with any status and measurements."""
    errors = st.builds(TensorError, texts, texts, n=reals, n_limit=reals, s=reals, s_limit=reals)
    return st.builds(
        Stage,
        name=st.sampled_from(STAGES),
        status=st.sampled_from(Status) if statuses is None else statuses,
        reason=texts,
        code=st.sampled_from(CODES),
        seconds=reals,
        exception=st.none() | st.builds(Raised, texts, texts),
        dtypes=st.dictionaries(texts, texts, max_size=2),
        errors=st.lists(errors, max_size=2).map(tuple),
        numbers=st.dictionaries(texts, reals, max_size=2),
        curves=st.dictionaries(texts, st.lists(reals, max_size=3).map(tuple), max_size=1),
    )


def outcomes() -> SearchStrategy[Outcome]:
    """The outcome of a cell that ran, or of one that never did."""
    ran = st.builds(conclude, st.lists(stages(), max_size=3), notes=st.lists(texts, max_size=2), seconds=reals)
    return ran | st.builds(not_run, texts, st.sampled_from(CODES))


def cells(
    *, probes: SearchStrategy[str] | None = None, precision: SearchStrategy[str] | None = None
) -> SearchStrategy[Cell]:
    """A measured, claimed or simulated cell."""
    common = {
        "probe": st.sampled_from(PROBES) if probes is None else probes,
        "precision": precisions() if precision is None else precision,
        "variant": st.sampled_from(["base", "large", "k1000", "3"]),
        "tier": st.sampled_from(["essential", "stress"]),
        "revision": st.integers(0, 3),
    }
    known = st.builds(Cell, outcome=outcomes(), evidence=st.sampled_from(["measured", "claimed"]), **common)
    unseen = st.lists(stages(st.none()), max_size=2).map(lambda s: Outcome(status=None, stages=tuple(s)))
    simulated = st.builds(Cell, outcome=unseen, evidence=st.just("simulated"), **common)
    return known | simulated


def environments(device: str = "cpu") -> SearchStrategy[Environment]:
    """An environment of a device; few distinct identities, so that surveys of one meet."""
    fields = st.dictionaries(texts, texts, max_size=2)
    identity = st.sampled_from(["2.12.0", "2.13.0"]).map(lambda v: {"device": device.partition(":")[0], "torch": v})
    return st.builds(Environment, identity=identity, scoped=fields, recorded=fields)


@st.composite
def surveys(
    draw: st.DrawFn,
    *,
    device: SearchStrategy[str] | None = None,
    cell: SearchStrategy[Cell] | None = None,
    max_cells: int = 4,
) -> Survey:
    """A survey of one device."""
    where = draw(st.sampled_from(DEVICES) if device is None else device)
    return Survey(
        tool=draw(texts),
        device=where,
        suite=draw(st.sampled_from(["quick", "core", "full"])),
        started=draw(starts()),
        seconds=draw(reals),
        environment=draw(environments(where)),
        cells=tuple(draw(st.lists(cells() if cell is None else cell, max_size=max_cells))),
    )
