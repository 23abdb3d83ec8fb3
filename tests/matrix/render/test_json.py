"""Plans and surveys as JSON: valid, versioned, and readable again as what they were."""

from __future__ import annotations

import json as reader
from typing import Any

from amp_matrix import codec
from amp_matrix.plan import Plan
from amp_matrix.render import json
from amp_matrix.survey import Survey


def read(data: bytes) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return reader.loads(data.decode("utf-8"), parse_constant=refuse)


def test_the_document(several: tuple[Survey, ...], plans: tuple[Plan, ...]) -> None:
    report = read(json.render(several, plans))
    assert list(report) == ["format", "kind", "plans", "surveys"]
    assert (report["format"], report["kind"]) == (1, "report")
    assert [plan["precision"] for plan in report["plans"]] == ["bf16-mixed", "fp32"]
    assert report["plans"][1]["evidence"] is None


def test_each_survey_decodes_to_itself(several: tuple[Survey, ...], plans: tuple[Plan, ...]) -> None:
    report = read(json.render(several, plans))
    for survey, written in zip(several, report["surveys"], strict=True):
        (again,) = codec.decode(reader.dumps(written).encode(), "report")
        assert codec.encode(again) == codec.encode(survey)


def test_hostile_text_and_non_finite_numbers(poisoned: tuple[Survey, Plan], hostile: str) -> None:
    survey, plan = poisoned
    report = read(json.render([survey], [plan]))
    assert report["plans"][0]["gain"] == {"low": "nan", "high": "inf"}
    assert report["plans"][0]["reason"] == hostile
    assert report["surveys"][0]["environment"]["recorded"] == {hostile: hostile}


def test_nothing() -> None:
    assert read(json.render([], [])) == {"format": 1, "kind": "report", "plans": [], "surveys": []}


def test_ten_thousand_cells(large: Survey) -> None:
    assert len(read(json.render([large], []))["surveys"][0]["cells"]) == 10_000
