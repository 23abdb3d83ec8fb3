"""`run --simulate`, and the commands that then meet cells without a status."""

from __future__ import annotations

import json
from pathlib import Path

from amp_matrix import codec
from amp_matrix.store import Store
from amp_probe.cli import simulated


def test_it_prints_the_policy_as_a_table_and_stores_it(cli, tmp_path: Path) -> None:
    ran = cli("run", "--simulate", "mps", "--out", tmp_path / "out.json")
    assert ran.code == 0, ran.err
    rows = {line.split()[0]: line.split()[1:] for line in ran.out.splitlines() if line[:1].strip()}
    assert rows["linear"] == ["bf16"] * 3 + ["fp16"] * 3
    assert rows["layer_norm"] == ["fp32"] * 6
    assert rows["gelu"] == ["fp32", "bf16", "fp32", "fp16"]
    assert "No device ran it" in ran.out
    (stored,) = Store(tmp_path / "store").load().surveys
    assert codec.decode((tmp_path / "out.json").read_bytes(), "out") == (stored,)
    assert simulated.table(stored) == ran.out


def test_every_command_that_reads_it_says_simulated_and_plans_nothing(cli, tmp_path: Path) -> None:
    assert cli("run", "--simulate", "cuda", "--precision", "bf16-mixed").code == 0
    shown = cli("show")
    assert shown.code == 0
    assert "cuda:0 (torch" in shown.out
    assert "simulated on" in shown.out
    assert "Measured: nothing." in shown.out
    assert "fallback" not in shown.out
    for form in ("--html", "--markdown", "--csv", "--json"):
        assert cli("report", form, "-o", tmp_path / "report").code == 0
        assert "simulated" in (tmp_path / "report").read_text()
    chosen = cli("choose", "--device", "cuda:0", "--format", "json")
    assert (chosen.code, json.loads(chosen.data)["evidence"]) == (0, None)
    store = tmp_path / "store" / "surveys"
    assert cli("check", store, "--require", "cuda: bf16-mixed: train").code == 1
    assert cli("check", store, "--require", "autocast.policy@bf16-mixed").code == 1
    assert cli("merge", store, "--out", tmp_path / "all.json").code == 0
    assert cli("diff", tmp_path / "all.json", tmp_path / "all.json").code == 0


def test_what_means_nothing_with_it_is_refused_at_once(cli) -> None:
    ran = cli("run", "--simulate", "tpu", "--device", "cpu", "--probe", "op.*", "--list", "--resume")
    assert (ran.code, ran.out) == (2, "")
    assert "--simulate: unknown value 'tpu'" in ran.err
    for option in ("--device", "--probe", "--list", "--resume"):
        assert f"{option}: means nothing with --simulate" in ran.err


def test_a_precision_without_autocast_is_refused(cli) -> None:
    ran = cli("run", "--simulate", "mps", "--precision", "bf16-true")
    assert ran.code == 2
    assert "only mixed precisions" in ran.err
