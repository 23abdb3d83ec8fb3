"""The commands that read surveys: show, report, diff, merge, and the store behind them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from amp_matrix import codec
from amp_matrix.store import Store
from amp_matrix.survey import Status

FORMS = ("--html", "--markdown", "--csv", "--json")


def test_an_empty_store_gives_a_hint(cli) -> None:
    ran = cli("show")
    assert (ran.code, ran.out) == (0, "")
    assert "amp-probe run" in ran.err


def test_an_empty_folder_is_said(cli, tmp_path: Path) -> None:
    ran = cli("show", tmp_path)
    assert (ran.code, ran.out) == (0, "")
    assert f"no survey in {tmp_path}" in ran.err


def test_show_prints_the_matrix_and_the_plans(cli, written) -> None:
    ran = cli("show", written(changed={"op.softmax@bf16-mixed": Status.NONFINITE}))
    assert (ran.code, ran.err) == (0, "")
    assert "nonfinite" in ran.out
    assert "op.softmax@bf16-mixed" in ran.out
    assert ran.out.count("not bf16-mixed") == 2  # to train and to infer


def test_show_reads_the_store_where_no_path_is_given(cli, survey, tmp_path: Path) -> None:
    Store(tmp_path / "store").add(survey())
    assert "softmax" in cli("show").out
    assert cli("show").out == cli("show", tmp_path / "store").out


def test_show_keeps_only_the_devices_and_statuses_asked_for(cli, written) -> None:
    one = written("one.json", device="cuda:0", changed={"op.softmax@bf16-mixed": Status.CRASH})
    two = written("two.json", device="cpu")
    cuda = cli("show", one, two, "--device", "cuda").out
    assert "cuda:0: train in fp32" in cuda
    assert "cpu: train" not in cuda
    assert "cpu" in cuda.split("Not measured")[0]  # it was
    only = cli("show", one, two, "--status", "crash").out
    assert "softmax" in only
    assert "layer_norm" not in only


def test_a_filter_changes_neither_the_verdict_nor_what_was_measured(cli, written) -> None:
    one = written("one.json", device="cuda:0", changed={"op.softmax@bf16-mixed": Status.CRASH})
    two = written("two.json", device="cuda:1", started="2026-02-01T00:00:00Z")
    head = {line for line in cli("show", one, two).out.splitlines() if line.startswith(("Measured", "cuda:0: train"))}
    assert len(head) == 2
    for option in (("--status", "crash"), ("--device", "cuda:0")):
        assert head <= set(cli("show", one, two, *option).out.splitlines())
    document = json.loads(cli("report", two, one, "--device", "cuda:1", "--json").data)
    assert {s["device"] for s in document["surveys"]} == {p["device"] for p in document["plans"]} == {"cuda:1"}
    assert all("op.softmax@bf16-mixed" in {r["cell"] for r in p["rejected"]} for p in document["plans"])


def test_a_device_that_the_store_knows_nothing_of_is_named(cli, survey, written, tmp_path: Path) -> None:
    Store(tmp_path / "store").add(survey())
    for command in (("show",), ("report", "--csv")):
        ran = cli(*command, "--device", "cuda")
        assert (ran.code, ran.err) == (0, "nothing measured on cuda here yet; amp-probe run --device cuda\n")
    path = written()
    assert cli("show", path, "--device", "mps").err == f"no survey of mps in {path}\n"


def test_a_missing_path_is_exit_2_and_every_one_is_named(cli) -> None:
    ran = cli("show", "one.json", "two.json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("No such file or directory") == 2


@pytest.mark.parametrize("command", [["show"], ["report", "--html"], ["merge"], ["diff", "good.json"]])
def test_a_damaged_file_that_was_named_is_exit_2(cli, written, tmp_path: Path, command: list[str]) -> None:
    good = written("good.json")
    bad = tmp_path / "bad.json"
    bad.write_bytes(good.read_bytes().replace(b'"status":"ok"', b'"status":"fine"', 2))
    ran = cli(*command, bad)
    assert (ran.code, ran.out) == (2, "")
    assert "bad.json" in ran.err
    assert "$.cells[" in ran.err
    assert ran.err.count("fine") >= 2


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"\xff\xfe", b"[]", b"null", b"[" * 100_000, b'{"format": 99, "kind": "survey"}']
)
def test_damage_in_a_folder_is_told_and_skipped(cli, written, tmp_path: Path, damage: bytes) -> None:
    folder = tmp_path / "surveys"
    folder.mkdir()
    written("surveys/good.json")
    (folder / "bad.json").write_bytes(damage)
    ran = cli("show", folder)
    assert ran.code == 0
    assert "softmax" in ran.out
    assert "warning: skipped a damaged survey" in ran.err
    assert "bad.json" in ran.err
    assert cli("merge", folder, "-o", tmp_path / "all.json").code == 2
    assert not (tmp_path / "all.json").exists()
    assert (folder / "bad.json").read_bytes() == damage


@pytest.mark.parametrize("form", FORMS)
def test_report_writes_each_form_to_stdout_or_a_file(cli, written, tmp_path: Path, form: str) -> None:
    path = written()
    ran = cli("report", path, form)
    assert (ran.code, ran.err) == (0, "")
    assert cli("report", path, form, "-o", tmp_path / "report").out == ""
    assert (tmp_path / "report").read_bytes() == ran.data


def test_report_as_json_and_csv_is_what_it_says(cli, written) -> None:
    path = written()
    document = json.loads(cli("report", path, "--json").data)
    assert document["format"] == 1
    assert {p["task"] for p in document["plans"]} == {"train", "infer"}
    rows = list(csv.reader(io.StringIO(cli("report", path, "--csv").out)))
    assert {len(row) for row in rows} == {len(rows[0])}


def test_report_takes_one_form_and_says_all_that_is_wrong(cli) -> None:
    for forms in ([], ["--html", "--csv"]):
        ran = cli("report", *forms, "-o", "missing/x", "--device", "cpuu")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.count("error: ") == 3
        assert "error: give one of --html, --markdown, --csv, --json\n" in ran.err


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_store_makes_an_empty_report(cli, form: str) -> None:
    ran = cli("report", form)
    assert ran.code == 0
    assert "amp-probe run" in ran.err


def test_merge_keeps_each_survey_once(cli, written, survey, tmp_path: Path) -> None:
    one, two = written("one.json"), written("two.json", started="2026-02-01T00:00:00Z")
    ran = cli("merge", one, two, one)
    assert (ran.code, ran.err) == (0, "")
    assert len(codec.decode(ran.data, "merged")) == 2
    (tmp_path / "both.json").write_bytes(ran.data)
    assert cli("merge", two, tmp_path / "both.json").data == ran.data
    assert cli("merge", two, one, "-o", tmp_path / "out.json").out == ""
    assert (tmp_path / "out.json").read_bytes() == ran.data


def test_diff_names_what_broke_and_fails_only_when_asked(cli, written) -> None:
    old = written("old.json", changed={"op.gelu@fp32": Status.ERROR})
    new = written("new.json", changed={"op.softmax@bf16-mixed": Status.INACCURATE})
    ran = cli("diff", old, new)
    assert (ran.code, ran.err) == (0, "")
    assert "broken   cpu/op.softmax@bf16-mixed: ok -> inaccurate" in ran.out
    assert "fixed    cpu/op.gelu@fp32: error -> ok" in ran.out
    assert ran.out.splitlines()[2:] == ["1 broken, 1 fixed, 0 changed, 0 added, 0 removed"]
    assert cli("diff", old, new, "--fail-on", "regressions").code == 1
    assert cli("diff", new, new, "--fail-on", "regressions").code == 0
    assert cli("diff", new, new).out == "no cell changed\n"


def test_diff_counts_the_cells_that_came_or_went_beyond_twenty(cli, written) -> None:
    old = written("old.json", changed={"op.a@fp32": Status.OK})
    new = written("new.json", changed={f"op.b{n}@fp32": Status.OK for n in range(23)})
    lines = cli("diff", old, new).out.splitlines()
    assert [line.startswith("added    cpu/op.b") for line in lines] == [True] * 20 + [False] * 3
    assert lines[20:] == [
        "added    and 3 more",
        "removed  cpu/op.a@fp32: ok -> not there",
        "0 broken, 0 fixed, 0 changed, 23 added, 1 removed",
    ]
    assert len(json.loads(cli("diff", old, new, "--format", "json").data)["changes"]) == 24


def test_diff_as_json(cli, written) -> None:
    old, new = written("old.json"), written("new.json", changed={"op.gelu@fp32": Status.CRASH})
    document = json.loads(cli("diff", old, new, "--format", "json").data)
    (change,) = document.pop("changes")
    assert document == {"format": 1, "kind": "diff"}
    assert change == {"cell": "op.gelu@fp32", "device": "cpu", "before": "ok", "after": "crash", "kind": "broken"}


def test_choices_are_checked_with_the_nearest_spelling(cli, written) -> None:
    ran = cli("diff", written(), written(), "--format", "jsn", "--fail-on", "regresions")
    assert ran.code == 2
    assert "did you mean 'json'?" in ran.err
    assert "did you mean 'regressions'?" in ran.err
    ran = cli("show", "--status", "okay", "--status", "crashed")
    assert "did you mean 'ok'?" in ran.err
    assert "did you mean 'crash'?" in ran.err


def test_the_schema_accepts_what_merge_writes(cli, written) -> None:
    import jsonschema

    schema = json.loads(cli("schema").data)
    jsonschema.Draft202012Validator(schema).validate(json.loads(cli("merge", written()).data))


@pytest.mark.parametrize(("word", "meant"), [("gpu", "cuda"), ("CPU", "cpu"), ("metal", "mps"), ("gpu:0", "cuda")])
def test_a_device_by_another_name_is_met_with_torchs(cli, word: str, meant: str) -> None:
    ran = cli("show", "--device", word)
    assert ran.code == 2
    assert f"did you mean '{meant}'?" in ran.err


def test_a_store_that_cannot_be_listed_is_exit_2(cli, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "surveys").write_text("a file")
    ran = cli("show")
    assert (ran.code, ran.out) == (2, "")
    assert "Not a directory" in ran.err
