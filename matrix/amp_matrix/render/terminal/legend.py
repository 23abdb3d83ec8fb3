"""What the signs, words and numbers on a terminal's page mean; of those alone that are on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from amp_matrix.render.grid import Block
from amp_matrix.render.terminal.line import Line, said
from amp_matrix.render.terminal.table import STYLES, Table
from amp_matrix.render.words import LOOKS, NOT_ASKED, gain, present
from amp_matrix.survey import Cell, Status

_WORD = 12


def legend(laid: Sequence[tuple[Block, Sequence[Table]]], ascii_only: bool) -> Iterator[Line]:
    """A line for each sign on the page, then one each for variants, tiers and eps, and speed, where they are there."""
    cells = [cell for block, _ in laid for cell in block.cells]
    if not cells:
        return
    tables = [table for _, found in laid for table in found]
    yield said("")
    for status in present(cells):
        yield _status(status, any(table.short for table in tables), ascii_only)
    if any(_has_blanks(table) for table in tables):
        yield said(f"{NOT_ASKED.ascii if ascii_only else NOT_ASKED.icon} {NOT_ASKED.word}")
    if any(cell.evidence == "claimed" for cell in cells):
        yield said("? claimed by a rule, not measured")
    yield from map(said, _words(cells, any(table.short for table in tables if table.speed)))


def _status(status: Status | None, short: bool, ascii_only: bool) -> Line:
    look = LOOKS[status]
    word = look.short if short else look.word
    meaning = look.meaning if word == look.word else f"{look.word}: {look.meaning}"
    head = f"{look.ascii if ascii_only else look.icon} {word:<{_WORD}}"
    return Line(Text(head, style=STYLES[status]).append(meaning, style="default not bold"), hang=_WORD + 2)


def _has_blanks(table: Table) -> bool:
    rows = [row for section in table.sections for _, row in section.rows]
    return any(not table.block.asked(row.probe, row.variant, c) for row in rows for c in table.columns)


def _words(cells: Sequence[Cell], short: bool) -> Iterator[str]:
    if any(cell.variant != "base" for cell in cells):
        yield "[variant]: other inputs to the same probe; its base variant has no bracket"
    failing = [cell for cell in cells if cell.outcome.status not in (Status.OK, None)]
    if failing:
        eps = "; eps: the dtype's finfo.eps" if any(c.outcome.status is Status.INACCURATE for c in failing) else ""
        yield f"essential: met by every model; stress: edge regimes{eps}"
    timed = [cell for cell in cells if gain(cell)]
    if timed:
        example = "1.5-1.9x" if short else "1.5x to 1.9x"
        yield f"{example}: times fp32's speed, interval of interleaved repeats{_threads(timed)}"


def _threads(cells: Sequence[Cell]) -> str:
    stages = [stage for cell in cells for stage in cell.outcome.stages]
    found = sorted({int(s.numbers["threads"]) for s in stages if s.numbers.get("threads", 0.0) >= 1})
    if not found:
        return ""
    return f" on {' or '.join(map(str, found))} {'thread' if found == [1] else 'threads'}"
