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

from amp_matrix.matrix import Known
from amp_matrix.plan import Plan
from amp_matrix.render.grid import Block, blocks
from amp_matrix.render.html.data import environment_rows, numbered, script_data
from amp_matrix.render.verdict import alike, measured, number_of_cells, verdicts
from amp_matrix.render.words import LOOKS, counts, gain, key, plain, present, seconds, worst_error
from amp_matrix.survey import SEVERITY, Cell, Status, Survey

FINDINGS = 1000
"""At most this many findings are written out for readers without JavaScript, the worst essential ones first."""


class Face(NamedTuple):
    """A cell in the matrix as the template shows it."""

    number: int
    status: str
    icon: str
    word: str
    extra: str
    reason: str


def render(surveys: Iterable[Survey], plans: Iterable[Plan]) -> str:
    """The whole page as one string; writes no file, loads nothing, and works from `file://`."""
    grid = blocks(surveys)
    numbers = numbered(grid)
    cells = [cell for block in grid for cell in block.cells]
    style, script = _asset("page.css"), _asset("page.js")
    found = _findings(grid)
    return _template().render(
        policy=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        data=script_data(grid, numbers),
        verdicts=verdicts(plans, grid),
        measured=measured(grid) if grid else "Nothing has been measured.",
        looks={key(status): look for status, look in LOOKS.items()},
        legend=[(key(status), LOOKS[status]) for status in present(cells)],
        blocks=[_block(number, block, numbers) for number, block in enumerate(grid)],
        findings=found[:FINDINGS],
        found=len(found),
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
    return {
        "title": block.title,
        "counts": counts(block.cells),
        "total": number_of_cells(len(block.cells)),
        "uniform": [(plain(u.precision), LOOKS[u.status].word, u.count, u.reason) for u in block.uniform],
        "columns": [plain(precision) for precision in block.columns],
        "environment": environment_rows(block),
        "surveys": [survey[:12] for survey in block.surveys],
        "families": [
            (
                plain(family.name),
                counts(family.cells),
                [
                    (
                        plain(row.label),
                        [
                            _face(row.cells.get(p), numbers.get((number, row.probe, row.variant, p)))
                            for p in block.columns
                        ],
                    )
                    for row in family.rows
                ],
            )
            for family in block.families
        ],
    }


def _face(known: Known | None, number: int | None) -> Face | None:
    if known is None or number is None:
        return None
    cell = known.cell
    look = LOOKS[cell.outcome.status]
    extra = gain(cell) or ("claimed" if cell.evidence == "claimed" else "")
    return Face(number, key(cell.outcome.status), look.icon, look.word, extra, plain(cell.outcome.reason))


def _findings(grid: Sequence[Block]) -> list[dict[str, Any]]:
    """Every cell that is not `ok` and not part of a uniform column: the essential first, then the worst."""
    found = [
        (block, cell)
        for block in grid
        for cell in block.cells
        if cell.outcome.status not in (Status.OK, None) and cell.precision in block.columns
    ]
    found.sort(key=lambda pair: (pair[1].tier != "essential", SEVERITY.index(pair[1].outcome.status or Status.OK)))
    return [_finding(block, cell) for block, cell in found]


def _finding(block: Block, cell: Cell) -> dict[str, Any]:
    error, limit = worst_error(cell)
    return {
        "id": plain(cell.id),
        "block": block.title,
        "tier": plain(cell.tier),
        "look": LOOKS[cell.outcome.status],
        "status": key(cell.outcome.status),
        "outcome": cell.outcome,
        "error": error,
        "limit": limit,
        "stages": [(s, key(s.status), LOOKS[s.status]) for s in cell.outcome.stages],
    }
