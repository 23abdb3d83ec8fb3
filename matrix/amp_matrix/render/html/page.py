"""The page: verdicts, filters, the matrix a device, and what failed. Text is escaped by jinja2's autoescape."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from amp_matrix.plan import Plan
from amp_matrix.render.grid import Block, Row, blocks, parts
from amp_matrix.render.html.data import environment_rows, numbered, script_data
from amp_matrix.render.verdict import alike, measured, verdicts
from amp_matrix.render.words import LOOKS, NOT_ASKED, counts, errors, face, gain, key, observed, plain, present, seconds
from amp_matrix.survey import Cell, Survey

FITS = 6
"""Up to this many columns a matrix fits the window, and needs no scroll box of its own."""

FINDINGS = 1000
"""At most this many findings are written out for readers without JavaScript, the worst essential ones first."""


class Face(NamedTuple):
    """A cell in the matrix as the template shows it: `said` and `speed` stand beside the icon."""

    number: int
    status: str
    icon: str
    said: str
    speed: str
    reason: str


def render(surveys: Iterable[Survey], plans: Iterable[Plan], *, coverage: Iterable[Survey] | None = None) -> str:
    """The whole page as one string; writes no file, loads nothing, and works from `file://`.

    `coverage` is every survey, where `surveys` are what a filter left of them.
    """
    given = tuple(surveys)
    whole = blocks(given if coverage is None else coverage)
    grid = whole if coverage is None else parts(given, whole)
    numbers = numbered(grid)
    cells = [cell for block in grid for cell in block.cells]
    style, script = _asset("page.css"), _asset("page.js")
    found = _findings(grid)
    return _template().render(
        policy=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        data=script_data(grid, numbers),
        verdicts=verdicts(plans, whole),
        measured=measured(whole) if whole else "Nothing has been measured.",
        looks={key(status): look for status, look in LOOKS.items()},
        legend=[(key(status), LOOKS[status]) for status in present(cells)],
        blocks=[_block(number, block, numbers) for number, block in enumerate(grid)],
        findings=found[:FINDINGS],
        found=len(found),
        simulated=_simulated(grid),
        not_asked=NOT_ASKED,
        total=len(cells),
    )


def _policy(style: str, script: str) -> str:
    """A Content-Security-Policy that allows this page's own style and script and nothing else."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, auto_reload=False
    )
    environment.filters.update(alike=alike, plain=plain, seconds=seconds)
    return environment.from_string(_asset("page.html.j2"))


def _block(number: int, block: Block, numbers: dict[tuple[int, str, str, str], int]) -> dict[str, Any]:
    def rows(some: Sequence[Row]) -> list[tuple[str, list[Face | bool]]]:
        return [(plain(row.label), [_face(number, block, row, p, numbers) for p in block.columns]) for row in some]

    return {
        "title": block.title,
        "tally": block.tally,
        "uniform": [(plain(u.precision), u.line) for u in block.uniform],
        "columns": [plain(precision) for precision in block.columns],
        "fits": len(block.columns) <= FITS,
        "environment": environment_rows(block),
        "surveys": [survey[:12] for survey in block.surveys],
        "families": [(plain(family.name), counts(family.cells), rows(family.rows)) for family in block.families],
    }


def _face(
    number: int, block: Block, row: Row, precision: str, numbers: dict[tuple[int, str, str, str], int]
) -> Face | bool:
    """A cell's face; without a cell, whether one was surveyed that a filter left out."""
    if precision not in row.cells:
        return block.asked(row.probe, row.variant, precision)
    cell = row.cells[precision].cell
    look = LOOKS[cell.outcome.status]
    speed = gain(cell)
    said = face(cell).removesuffix(speed).rstrip()
    said = f"{said} claimed" if cell.evidence == "claimed" else said
    at = numbers[number, row.probe, row.variant, precision]
    return Face(at, key(cell.outcome.status), look.icon, said, speed, plain(cell.outcome.reason))


def _findings(grid: Sequence[Block]) -> list[dict[str, Any]]:
    """Every failing cell, the essential first."""
    found = [(block, cell) for block in grid for cell in block.failing]
    found.sort(key=lambda pair: pair[1].tier != "essential")
    return [_finding(block, cell) for block, cell in found]


def _simulated(grid: Sequence[Block]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Each simulated cell with its block and the dtypes that its stages saw."""
    found = [(block, cell) for block in grid for cell in block.cells if cell.outcome.status is None]
    return [(plain(cell.id), block.title, observed(cell)) for block, cell in found[:FINDINGS]]


def _finding(block: Block, cell: Cell) -> dict[str, Any]:
    return {
        "id": plain(cell.id),
        "block": block.title,
        "tier": plain(cell.tier),
        "look": LOOKS[cell.outcome.status],
        "status": key(cell.outcome.status),
        "outcome": cell.outcome,
        "errors": errors(cell),
        "stages": [(s, key(s.status), LOOKS[s.status]) for s in cell.outcome.stages],
    }
