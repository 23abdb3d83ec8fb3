"""The gate's exit codes and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amp_matrix.survey import Status

TRAIN = "cpu: bf16-mixed: train"


def test_a_requirement_that_holds_is_0(cli, written) -> None:
    ran = cli("check", written(), "--require", TRAIN, "--require", "op.softmax@bf16-mixed")
    assert (ran.code, ran.err) == (0, "")
    assert f"met      {TRAIN}" in ran.out
    assert "met      cpu/op.softmax@bf16-mixed" in ran.out
    assert ran.out.endswith("2 met\n")


def test_a_requirement_that_does_not_hold_is_1_and_names_the_cell(cli, written) -> None:
    ran = cli("check", written(changed={"op.softmax@bf16-mixed": Status.NONFINITE}), "--require", TRAIN)
    assert (ran.code, ran.err) == (1, "")
    assert "FAILED" in ran.out
    assert "op.softmax@bf16-mixed" in ran.out


def test_what_was_never_measured_fails(cli, written) -> None:
    assert cli("check", written(), "--require", "cpu: fp16-mixed: train").code == 1


def test_an_absent_device_fails_only_where_that_is_strict(cli, written) -> None:
    asked = ("check", written(), "--require", "mps: bf16-mixed: train")
    assert cli(*asked).code == 0
    assert "not here" in cli(*asked).out
    assert cli(*asked, "--strict").code == 1


def test_json_holds_the_findings(cli, written) -> None:
    ran = cli("check", written(), "--require", TRAIN, "--require", "cpu: fp16-true: infer", "--format", "json")
    document = json.loads(ran.data)
    assert ran.code == 1
    assert (document["format"], document["kind"], document["passed"]) == (1, "check", False)
    assert [f["verdict"] for f in document["findings"]] == ["met", "failed"]


def test_a_baseline_lets_known_failures_pass_and_no_others(cli, written, tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    known = written("known.json", changed={"op.softmax@bf16-mixed": Status.NONFINITE})
    ran = cli("check", known, "--baseline", file, "--write-baseline")
    assert (ran.code, ran.err) == (0, f"1 failing cell written to {file}\n")
    assert ran.out == ""
    assert cli("check", known, "--baseline", file).code == 0
    worse = {"op.softmax@bf16-mixed": Status.NONFINITE, "op.gelu@bf16-mixed": Status.ERROR}
    ran = cli("check", written("worse.json", changed=worse), "--baseline", file)
    assert ran.code == 1
    assert "FAILED   cpu/op.gelu@bf16-mixed" in ran.out
    ran = cli("check", written("fixed.json"), "--baseline", file)
    assert ran.code == 0
    assert "fixed    cpu/op.softmax@bf16-mixed" in ran.out


def test_a_required_cell_that_nothing_knows_is_met_with_the_nearest(cli, written) -> None:
    ran = cli("check", written(), "--require", "op.sofmax@bf16-mixed")
    assert ran.code == 1
    assert "no survey here knows a probe of this name (did you mean 'op.softmax'?)" in ran.out


def test_all_faults_are_said_at_once_and_nothing_is_written(cli, written, tmp_path: Path) -> None:
    ran = cli(
        *("check", written(), "--require", "cdua: bf16-mixed: train", "--require", "op.softmax@bf16mixed"),
        *("--format", "jsno", "--baseline", tmp_path / "missing" / "b.json", "--write-baseline"),
    )
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("error: ") == 4
    assert "did you mean 'cuda'?" in ran.err
    assert "did you mean 'json'?" in ran.err


def test_nothing_to_check_is_a_fault_of_usage(cli, written) -> None:
    ran = cli("check", written())
    assert (ran.code, ran.out) == (2, "")
    assert "nothing to check" in ran.err


@pytest.mark.parametrize("damage", ["", "[]", '{"format": 1, "cells": ["gpu/x"]}', '{"format": 2, "cells": []}'])
def test_a_baseline_that_cannot_be_read_is_2(cli, written, tmp_path: Path, damage: str) -> None:
    file = tmp_path / "baseline.json"
    file.write_text(damage)
    ran = cli("check", written(), "--baseline", file)
    assert (ran.code, ran.out) == (2, "")
    assert "baseline.json" in ran.err
    assert cli("check", written(), "--baseline", tmp_path / "none.json").code == 2


def test_a_damaged_survey_is_2_and_never_1(cli, written, tmp_path: Path) -> None:
    written("good.json")
    (tmp_path / "bad.json").write_text("{")
    assert cli("check", tmp_path, "--require", TRAIN).code == 2


def test_requirements_come_from_the_project(cli, written, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.amp-probe]\nrequire = ["cpu: fp16-mixed: train"]\n')
    path = written()
    assert cli("check", path).code == 1
    assert cli("check", path, "--require", TRAIN).code == 0
