"""The journal: what a killed run leaves, and what the next one makes of it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from amp_matrix.survey import Cell, Environment, Stage, Status, conclude
from amp_probe import journal as journals
from amp_probe.journal import Header

HEADER = Header(
    plan="p" * 64,
    device="cpu",
    suite="core",
    started="2026-01-01T00:00:00Z",
    tool="0.0.0",
    environment=Environment(identity={"device": "cpu"}),
)


def cell(name: str, error: float = 0.5) -> Cell:
    stage = Stage(name="forward", status=Status.INACCURATE, reason="far off", numbers={"loss": error})
    return Cell(probe=name, precision="fp32", tier="stress", revision=1, outcome=conclude([stage]))


def written(folder: Path, *names: str) -> Path:
    journal = journals.create(folder, "one", HEADER)
    for name in names:
        journal.append(cell(name))
    journal.close(remove=False)
    return folder / "one.jsonl"


def test_resume_gives_back_every_cell(tmp_path: Path) -> None:
    written(tmp_path, "op.a", "op.b")
    journal = journals.resume(tmp_path, HEADER)
    assert journal is not None
    assert journal.done == {"op.a@fp32": cell("op.a"), "op.b@fp32": cell("op.b")}
    assert journal.header == HEADER
    journal.close(remove=True)
    assert list(tmp_path.iterdir()) == []


def test_non_finite_numbers_survive(tmp_path: Path) -> None:
    journal = journals.create(tmp_path, "one", HEADER)
    journal.append(cell("op.a", float("inf")))
    journal.close(remove=False)
    again = journals.resume(tmp_path, HEADER)
    assert again is not None
    assert again.done["op.a@fp32"].outcome.stages[0].numbers["loss"] == float("inf")
    again.close(remove=False)


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_torn_last_line_is_cut_and_the_rest_kept(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path, "op.a", "op.b")
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    journal = journals.resume(tmp_path, HEADER)
    assert journal is not None
    assert set(journal.done) == {"op.a@fp32"}
    journal.append(cell("op.b"))
    journal.close(remove=False)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "other",
    [
        {"plan": "q" * 64},
        {"device": "cuda:1"},
        {"environment": Environment(identity={"device": "cuda"})},
        {"environment": Environment(identity={"device": "cpu"}, scoped={"float32_matmul_precision": "high"})},
    ],
    ids=["plan", "device", "identity", "scoped"],
)
def test_another_run_is_not_resumed(tmp_path: Path, other: dict[str, object]) -> None:
    path = written(tmp_path, "op.a")
    assert journals.resume(tmp_path, msgspec.structs.replace(HEADER, **other)) is None
    assert path.exists()
    again = journals.resume(tmp_path, HEADER)
    assert again is not None, "the lock was not let go"
    again.close(remove=False)


def test_what_is_only_recorded_may_differ(tmp_path: Path) -> None:
    written(tmp_path, "op.a")
    now = Environment(identity={"device": "cpu"}, recorded={"threads": "2"})
    journal = journals.resume(tmp_path, msgspec.structs.replace(HEADER, environment=now))
    assert journal is not None
    journal.close(remove=False)


def test_a_pipe_in_a_journals_place_is_not_waited_for(tmp_path: Path) -> None:
    written(tmp_path, "op.a")
    os.mkfifo(tmp_path / "zzz.jsonl")
    journal = journals.resume(tmp_path, HEADER)
    assert journal is not None
    journal.close(remove=False)


def test_a_folder_in_a_journals_place_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "odd.jsonl").mkdir()
    assert journals.resume(tmp_path, HEADER) is None


def test_a_locked_journal_is_somebody_elses(tmp_path: Path) -> None:
    journal = journals.create(tmp_path, "one", HEADER)
    assert journals.resume(tmp_path, HEADER) is None
    journal.close(remove=False)


def test_the_newest_of_several_is_taken(tmp_path: Path) -> None:
    for name in ("2026-01-01", "2026-01-02"):
        journal = journals.create(tmp_path, name, HEADER)
        journal.append(cell(f"op.of_{name[-2:]}"))
        journal.close(remove=False)
    journal_or_none = journals.resume(tmp_path, HEADER)
    assert journal_or_none is not None
    assert set(journal_or_none.done) == {"op.of_02@fp32"}
    journal_or_none.close(remove=False)


@pytest.mark.parametrize("content", [b"", b"\n", b"not json\n", b"[1]\n", b'{"plan": 3}\n', b"\xff\xfe\n"])
def test_a_damaged_header_is_passed_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.jsonl").write_bytes(content)
    assert journals.resume(tmp_path, HEADER) is None


def test_a_damaged_line_ends_what_is_believed(tmp_path: Path) -> None:
    path = written(tmp_path, "op.a", "op.b", "op.c")
    lines = path.read_bytes().split(b"\n")
    lines[2] = b'{"probe": "op.b"}'
    path.write_bytes(b"\n".join(lines))
    journal = journals.resume(tmp_path, HEADER)
    assert journal is not None
    assert set(journal.done) == {"op.a@fp32"}
    journal.close(remove=False)
