"""A command line that runs in this process, and surveys for it to read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from amp_matrix import codec, essential
from amp_matrix.survey import Cell, Environment, Outcome, Stage, Status, Survey, conclude
from amp_probe.cli.main import main


class Ran(NamedTuple):
    """What a command gave: its exit code, stdout as bytes, stderr as text."""

    code: int
    data: bytes
    err: str

    @property
    def out(self) -> str:
        """Stdout as text."""
        return self.data.decode()


Cli = Callable[..., Ran]


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty store, a folder without configuration, and none in the environment."""
    for name in [n for n in os.environ if n.startswith("AMP_PROBE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AMP_PROBE_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cli(capsysbinary: pytest.CaptureFixture[bytes]) -> Cli:
    """Runs amp-probe with these arguments in this process."""

    def run(*arguments: object) -> Ran:
        code = main([str(a) for a in arguments])
        seen = capsysbinary.readouterr()
        return Ran(code, seen.out, seen.err.decode())

    return run


@pytest.fixture
def spawned() -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Runs amp-probe as users do, in a process of its own."""

    def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "amp_probe", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, timeout=120, check=False, **options)  # type: ignore[call-overload,no-any-return]

    return run


@pytest.fixture
def survey() -> Callable[..., Survey]:
    """Makes a survey whose essential cells of bf16-mixed and fp32 are all ok, but for those named."""

    def make(
        changed: dict[str, Status] | None = None, device: str = "cpu", started: str = "2026-01-01T00:00:00Z"
    ) -> Survey:
        changed = changed or {}
        ids = {
            e.cell: e.revision
            for p in ("fp32", "bf16-mixed")
            for t in ("train", "infer")
            for e in essential.cells(t, p)
        }
        ids |= {cell: 1 for cell in changed if cell not in ids}
        return Survey(
            tool="0.1.0",
            device=device,
            suite="core",
            started=started,
            seconds=1.5,
            environment=Environment({"device": device.partition(":")[0], "torch": "2.13.0"}),
            cells=tuple(_cell(cell, revision, changed.get(cell, Status.OK)) for cell, revision in ids.items()),
        )

    return make


@pytest.fixture
def written(survey: Callable[..., Survey], tmp_path: Path) -> Callable[..., Path]:
    """Writes such a survey to a file."""

    def write(name: str = "survey.json", **options: object) -> Path:
        path = tmp_path / name
        path.write_bytes(codec.encode(survey(**options)))
        return path

    return write


def _cell(name: str, revision: int, status: Status) -> Cell:
    from amp_matrix.cell_id import parse

    found = parse(name)
    stage = Stage(name="forward", status=status, reason="" if status is Status.OK else f"seen to be {status}")
    outcome: Outcome = conclude([stage])
    cell = Cell(
        probe=found.probe,
        variant=found.variant,
        precision=str(found.precision),
        tier=essential.tier(name),
        revision=revision,
        outcome=outcome,
    )
    assert msgspec.structs.asdict(cell)["revision"] == revision
    return cell
