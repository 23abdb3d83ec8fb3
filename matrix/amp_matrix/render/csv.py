"""Surveys as CSV, one row a cell of every survey given, repeats included."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator

from amp_matrix import codec
from amp_matrix.render.words import LIMIT, key, observed, plain
from amp_matrix.survey import Cell, Survey

COLUMNS = (
    "survey",
    "device",
    "torch",
    "probe",
    "variant",
    "precision",
    "tier",
    "evidence",
    "status",
    "stage",
    "reason",
    "n",
    "n_limit",
    "s",
    "s_limit",
    "seconds",
    "dtypes",
)
"""`n`, `s` and their limits are in eps, each of the tensor that lies nearest to its limit, or furthest over it.

`dtypes` are those seen, by stage; they are what a simulated cell has in place of a status.
"""

_DTYPES = 20_000

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # OWASP, "CSV Injection"


def render(surveys: Iterable[Survey]) -> str:
    """A header and one row a cell. Text that a spreadsheet would run as a formula gets an apostrophe before it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for survey in surveys:
        writer.writerows(_rows(survey))
    return out.getvalue()


def _rows(survey: Survey) -> Iterator[list[str]]:
    identity = survey.environment.identity
    head = [codec.survey_id(survey), survey.device, identity.get("torch", "")]
    for cell in survey.cells:
        outcome = cell.outcome
        names = [cell.probe, cell.variant, cell.precision, cell.tier, cell.evidence, key(outcome.status)]
        texts = [_text(text) for text in (*head, *names, outcome.stage, outcome.reason)]
        dtypes = " | ".join(f"{stage}: {seen}" for stage, seen in observed(cell))
        yield [*texts, *_errors(cell), _number(outcome.seconds), _text(dtypes, _DTYPES)]


def _errors(cell: Cell) -> list[str]:
    errors = [error for stage in cell.outcome.stages for error in stage.errors]
    whole = _furthest([(e.n, e.n_limit) for e in errors])
    sliced = _furthest([(e.s, e.s_limit) for e in errors if e.s_limit != 0])
    return [text for pair in (whole, sliced) for text in (map(_number, pair) if pair else ("", ""))]


def _furthest(pairs: list[tuple[float, float]]) -> tuple[float, float] | None:
    """The pair of error and limit whose ratio is the largest; NaN counts as the largest of all."""

    def ratio(pair: tuple[float, float]) -> float:
        value, limit = pair
        return math.inf if math.isnan(value) else value / limit if limit > 0 else value

    return max(pairs, key=ratio, default=None)


def _text(text: str, limit: int = LIMIT) -> str:
    line = plain(text, limit)
    return f"'{line}" if line.startswith(_FORMULA) else line


def _number(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else _text(str(value))
