"""Whole runs with every fault among innocent cells: each fault its status, every innocent cell as if alone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from fault_probes import FAULTS
from quiet import Quiet

from amp_matrix import codec
from amp_matrix.store import Store
from amp_matrix.survey import Outcome, Survey
from amp_probe.run import Options, run

HERE = Path(__file__).parent


def timeless(outcome: Outcome) -> Outcome:
    """An outcome without its times and notes: what must be bitwise equal between runs."""
    stages = tuple(msgspec.structs.replace(s, seconds=0.0) for s in outcome.stages)
    return msgspec.structs.replace(outcome, stages=stages, seconds=0.0, notes=())


def probed(store: Path, *modules: str, **more: object) -> Survey:
    options = Options(devices=("cpu",), store=store, modules=modules, **{"globs": ("fault.*", "innocent.*"), **more})
    (survey,) = run(options, Quiet()).surveys
    return survey


@pytest.fixture(autouse=True)
def _workers_find_the_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))


def test_each_fault_has_its_status_and_no_other_cell_is_touched(tmp_path: Path) -> None:
    alone = probed(tmp_path, "innocent_probes")
    among = {c.id: c.outcome for c in probed(tmp_path, "fault_probes").cells}
    statuses = {name: str(among[f"fault.{name}@fp32"].status) for name in FAULTS}
    assert statuses == {name: status for name, (status, _) in FAULTS.items()}
    for cell in alone.cells:
        assert timeless(among[cell.id]) == timeless(cell.outcome), cell.id
        assert cell.outcome.status == "ok"


def test_a_dead_worker_keeps_the_stages_before_and_names_the_one_that_killed_it(tmp_path: Path) -> None:
    survey = probed(tmp_path, "fault_probes", precisions=("fp32",))
    outcome = next(c.outcome for c in survey.cells if c.probe == "fault.segfault")
    assert [s.name for s in outcome.stages] == ["before", "fault"]
    assert outcome.stage == "fault"
    assert "SIGSEGV" in outcome.reason
    left = next(c.outcome for c in survey.cells if c.probe == "fault.change_state")
    assert any("default_dtype" in note for note in left.notes)


GLOBS = ("fault.change_state", "fault.exit_0", "innocent.*")
SCRIPT = """
import os, sys
from pathlib import Path
from amp_probe.run import Options, run
sys.path[:0] = [{here!r}, {tests!r}]
from quiet import Quiet
from test_whole_run import GLOBS
told = os.open({told!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
class Loud(Quiet):
    def cell(self, cell):
        os.write(told, cell.id.encode() + b"\\n")
store = Path({store!r})
run(Options(devices=("cpu",), globs=GLOBS, store=store, modules=("fault_probes",), resume=True), Loud())
"""


def start(store: Path) -> subprocess.Popen[bytes]:
    script = SCRIPT.format(here=str(HERE), tests=str(HERE.parent), store=str(store), told=str(store / "told"))
    return subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(HERE)})


def kept(store: Path) -> list[str]:
    """The ids of the cells in the store's one journal."""
    (path,) = store.glob("journals/*.jsonl")
    return [codec.decode_cell(line).id for line in path.read_bytes().split(b"\n")[1:-1]]


def told(store: Path) -> list[str]:
    """The ids of the cells that the killed runs reported."""
    path = store / "told"
    return path.read_text().split() if path.exists() else []


def kill_when(store: Path, goal: int, chance: random.Random) -> None:
    """Start a run and kill it without warning, a moment after it has reported so many cells."""
    process, deadline = start(store), time.monotonic() + 60
    while len(told(store)) < goal and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(chance.random() * 0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_killed_twenty_times_at_random_the_run_completes_to_the_same_cells(tmp_path: Path) -> None:
    whole = probed(tmp_path / "whole", "fault_probes", globs=GLOBS)
    store, chance = tmp_path / "killed", random.Random(2026)
    store.mkdir()
    for kill in range(20):
        kill_when(store, 1 + kill, chance)
        assert set(told(store)) <= set(kept(store)), "a reported cell was lost"
    assert start(store).wait() == 0
    (survey,) = Store(store).load().surveys
    assert {c.id: timeless(c.outcome) for c in survey.cells} == {c.id: timeless(c.outcome) for c in whole.cells}
    assert len(told(store)) == len(set(told(store))), "a reported cell ran again"
    assert list(store.glob("journals/*")) == []
