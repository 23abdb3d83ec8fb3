"""Surveys that were written and read back, whose numbers are then of the documents' own type, in every form."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from amp_matrix import codec
from amp_matrix.plan import Gain, Plan
from amp_matrix.render import csv, html, json, markdown
from amp_matrix.survey import Real, Survey

FORMS: dict[str, Callable[[tuple[Survey, ...], tuple[Plan, ...]], object]] = {
    "csv": lambda surveys, plans: csv.render(surveys),
    "html": html.render,
    "json": json.render,
    "markdown": markdown.render,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_survey_read_back_renders_alike(form: str, survey: Survey, plans: tuple[Plan, ...]) -> None:
    again = codec.decode(codec.encode(survey), "test")
    chosen = msgspec.structs.replace(plans[0], gain=Gain(Real(2.1), Real(2.4)))
    assert FORMS[form](again, (chosen,)) == FORMS[form]((survey,), (plans[0],))
