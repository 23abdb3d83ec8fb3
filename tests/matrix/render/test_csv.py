"""Surveys as CSV: a row a cell, read back by the csv module, with nothing a spreadsheet would run."""

from __future__ import annotations

import csv as reader
import io

from amp_matrix.plan import Plan
from amp_matrix.render import csv
from amp_matrix.survey import Survey


def rows(*surveys: Survey) -> list[dict[str, str]]:
    return list(reader.DictReader(io.StringIO(csv.render(surveys)), strict=True))


def test_a_row_a_cell(several: tuple[Survey, ...]) -> None:
    found = rows(*several)
    assert len(found) == sum(len(survey.cells) for survey in several)
    assert len({row["survey"] for row in found}) == 4
    assert list(found[0]) == list(csv.COLUMNS)


def test_what_a_row_says(survey: Survey) -> None:
    row = next(r for r in rows(survey) if r["probe"] == "op.linear")
    assert row["stage"] == "backward"
    assert (row["status"], row["tier"], row["evidence"]) == ("inaccurate", "essential", "measured")
    assert (row["device"], row["torch"], row["precision"], row["variant"]) == ("cpu", "2.13.0", "fp16-mixed", "base")
    assert (row["n"], row["n_limit"], row["s"], row["s_limit"]) == ("19630", "1.5", "nan", "2")
    assert float(row["seconds"]) == 0.0063


def test_the_worst_tensor_of_all_stages_is_named(survey: Survey) -> None:
    row = next(r for r in rows(survey) if r["probe"] == "op.softmax" and r["status"] == "ok")
    assert (row["n"], row["s"]) == ("0.41", "0.9")


def test_a_cell_without_status_or_errors(survey: Survey) -> None:
    row = next(r for r in rows(survey) if r["probe"] == "op.gelu")
    assert (row["status"], row["evidence"], row["n"], row["s_limit"]) == ("simulated", "simulated", "", "")


def test_a_simulated_cell_has_every_dtype_that_was_seen(simulated: Survey) -> None:
    row = next(r for r in rows(simulated) if r["precision"] == "bf16-mixed")
    assert row["dtypes"].startswith("enter: bfloat16 from autocast | float32: bfloat16 from linear, matmul; ")
    assert row["dtypes"].endswith(", exp58, exp59")


def test_no_field_is_a_formula(poisoned: tuple[Survey, Plan]) -> None:
    found = rows(poisoned[0])
    assert len(found) == 2
    for row in found:
        assert None not in row
        for value in row.values():
            assert not value.startswith(("=", "+", "-", "@", "\t", "\r"))
            assert "\n" not in value
            assert "\x1b" not in value


def test_a_formula_stays_readable(make: object, survey: Survey) -> None:
    text = csv.render([make(device="=1+1")])  # type: ignore[operator]
    assert ",'=1+1," in text


def test_no_surveys_are_a_header() -> None:
    assert csv.render([]) == ",".join(csv.COLUMNS) + "\n"


def test_ten_thousand_cells(large: Survey) -> None:
    assert csv.render([large]).count("\n") == 10_001
