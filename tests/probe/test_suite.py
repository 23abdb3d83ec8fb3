"""The registry and the plan: what a run selects, and that the essential list and the registry agree."""

from __future__ import annotations

import pytest

from amp_matrix import essential
from amp_matrix.cell_id import parse
from amp_matrix.precision import COMPUTES
from amp_probe.probes import ALL
from amp_probe.suite import plan


def test_no_cell_is_declared_twice() -> None:
    ids = [s.id for s in plan(ALL, "full")]
    assert len(ids) == len(set(ids))


def test_every_id_reads_back() -> None:
    for spec in plan(ALL, "full"):
        cell = parse(spec.id)
        assert (cell.probe, cell.variant, str(cell.precision)) == (spec.probe, spec.variant, spec.precision)


@pytest.mark.parametrize("task", ["train", "infer"])
@pytest.mark.parametrize("precision", COMPUTES)
def test_the_registry_has_every_essential_cell_at_its_revision(task: str, precision: str) -> None:
    known = {s.id: s.revision for s in plan(ALL, "quick")}
    wanted = {e.cell: e.revision for e in essential.cells(task, precision)}  # type: ignore[arg-type]
    assert wanted
    assert {cell: known.get(cell) for cell in wanted} == wanted


def test_quick_is_the_essential_cells_and_two_timings() -> None:
    quick = plan(ALL, "quick")
    assert {s.probe for s in quick if s.tier != "essential"} == {"speed.train_step", "speed.infer"}


def test_timings_come_last_and_alone() -> None:
    flags = [s.alone for s in plan(ALL, "core")]
    assert flags == sorted(flags)
    assert any(flags)


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("op.softmax", {"op.softmax"}),
        ("op.softmax[[]base]", set()),
        ("op.matmul[k1000]", {"op.matmul"}),
        ("op.*[k1000]", {"op.matmul", "op.linear"}),
        ("op.matmul@bf16-mixed", {"op.matmul"}),
        ("*@bf16-mixed", None),
        ("nothing.*", set()),
    ],
)
def test_globs_match_probe_variant_or_whole_id(glob: str, expected: set[str] | None) -> None:
    found = {s.probe for s in plan(ALL, "core", [glob])}
    assert found == expected if expected is not None else len(found) > 10


def test_a_timeout_overrides_every_probes_own() -> None:
    assert {s.timeout for s in plan(ALL, "core", timeout=3.5)} == {3.5}


def test_every_probe_says_what_it_would_have_caught() -> None:
    missing = [p.name for p in ALL if not (p.make.__doc__ or "").strip()]
    assert missing == []
