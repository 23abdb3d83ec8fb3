"""`run`, `env`, `choose` and the gate over the store, with the real torch of this machine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from amp_matrix import codec
from amp_matrix.store import Store

Spawn = Callable[..., "subprocess.CompletedProcess[bytes]"]
SMALL = (
    "--device",
    "cpu",
    "--suite",
    "quick",
    "--probe",
    "op.gelu",
    "--precision",
    "fp32",
    "--precision",
    "bf16-mixed",
)


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has mps")
def test_an_absent_device_says_why_and_exits_3(cli, tmp_path: Path) -> None:
    ran = cli("run", "--device", "mps", "--out", tmp_path / "out.json")
    assert (ran.code, ran.out) == (3, "")
    assert "mps: " in ran.err
    assert not (tmp_path / "out.json").exists()
    ran = cli("env", "--device", "mps", "--format", "json")
    assert ran.code == 3
    assert json.loads(ran.data)["absent"]["mps"]


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has mps")
def test_a_run_stores_prints_and_writes_what_it_saw(cli, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    ran = cli("run", *SMALL, "--device", "mps", "--out", out)
    assert ran.code == 0, ran.err
    assert "gelu" in ran.out
    assert "mps: " in ran.err
    (stored,) = Store(tmp_path / "store").load().surveys
    assert codec.decode(out.read_bytes(), "out") == (stored,)
    assert {c.id for c in stored.cells} == {"op.gelu@fp32", "op.gelu@bf16-mixed"}
    (path,) = (tmp_path / "store" / "surveys").rglob("*.json")
    assert f"cpu: stored as {path}" in ran.err
    assert cli("show").out == ran.out
    assert cli("check", "--require", "cpu/op.gelu@fp32").code == 0
    assert cli("check", "--require", "cpu/op.softmax@fp32").code == 1


def test_a_list_prints_ids_and_runs_nothing(cli, tmp_path: Path) -> None:
    ran = cli("run", "--list", *SMALL)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.split() == ["op.gelu@fp32", "op.gelu@bf16-mixed"]
    assert not (tmp_path / "store").exists()


def test_no_cell_that_matches_is_2(cli) -> None:
    ran = cli("run", "--device", "cpu", "--probe", "op.nothing")
    assert (ran.code, ran.out) == (2, "")
    assert "no cell matches" in ran.err


def test_a_device_number_that_is_not_there_is_told(cli) -> None:
    ran = cli("run", "--device", "cuda:999")
    assert ran.code == 3
    assert "cuda:999" in ran.err


def test_choose_falls_back_in_every_format(spawned: Spawn) -> None:
    done = spawned("choose", "--device", "cpu", "--format", "json")
    plan = json.loads(done.stdout)
    assert done.returncode == 0
    assert (plan["format"], plan["kind"], plan["precision"], plan["evidence"]) == (1, "plan", "fp32", None)
    assert b"warning: " in done.stderr
    done = spawned("choose", "--device", "cpu", "--format", "shell")
    script = f'{done.stdout.decode()}\necho "$AMP_PRECISION $AMP_DTYPE $AMP_AUTOCAST"'
    shell = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True, timeout=60)
    assert shell.stdout == "fp32 float32 0\n"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_ends_a_run_with_130_and_resume_goes_on(tmp_path: Path, cli) -> None:
    command = [sys.executable, "-m", "amp_probe", "run", "--device", "cpu", "--suite", "quick", "--precision", "fp32"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    journals = tmp_path / "store" / "journals"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(p.read_bytes().count(b"\n") > 3 for p in journals.glob("*.jsonl")):
        time.sleep(0.005)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130, err.decode()
    assert (out, err.decode().splitlines()[-1]) == (b"", "interrupted")
    assert b"Traceback" not in err
    ran = cli(*command[3:], "--resume")
    assert ran.code == 0
    assert "nothing to resume" not in ran.err
    total = len(Store(tmp_path / "store").load().surveys[0].cells)
    assert int(ran.err.split()[1]) < total
    assert list(journals.glob("*.jsonl")) == []


def test_nothing_to_resume_is_said(cli) -> None:
    ran = cli("run", *SMALL, "--resume")
    assert ran.code == 0
    assert "cpu: nothing to resume; a full run starts" in ran.err


def test_a_run_that_can_be_kept_nowhere_is_2_and_says_why(cli, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("no folder")
    ran = cli("run", *SMALL)
    assert ran.code == 2
    assert "gelu" in ran.out
    assert ran.err.splitlines()[-1].startswith("error: cpu: the survey could not be stored: ")
    assert "give --out FILE, or another folder in AMP_PROBE_STORE" in ran.err
    assert cli("run", *SMALL, "--out", tmp_path / "out.json").code == 0
    assert (tmp_path / "out.json").is_file()


def test_interrupted_before_any_cell_nothing_is_said_to_be_kept(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from amp_probe.cli import progress

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(progress.Lines, "started", interrupt)
    ran = cli("run", *SMALL)
    assert (ran.code, ran.out) == (130, "")
    assert "kept" not in ran.err


def test_choose_says_all_that_is_wrong(cli) -> None:
    ran = cli("choose", "--device", "cpuu", "--task", "trian", "--prefer", "sped", "--format", "yaml")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("error: ") == 4
    assert "did you mean 'train'?" in ran.err


def test_env_prints_what_choose_compares(cli) -> None:
    import platform

    document = json.loads(cli("env", "--device", "cpu", "--format", "json").data)
    assert (document["format"], document["kind"]) == (1, "environments")
    assert document["devices"]["cpu"]["identity"]["device"] == "cpu"
    text = cli("env", "--device", "cpu").out
    assert "torch: " in text
    assert platform.node() not in text
