"""A terminal's page: devices, verdicts, why, the matrix, what failed, and what the signs mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from amp_matrix.plan import Plan
from amp_matrix.render.findings import Finding, grouped
from amp_matrix.render.grid import Block, blocks, parts, short_names
from amp_matrix.render.terminal.legend import legend
from amp_matrix.render.terminal.line import Line, ascii_only, said
from amp_matrix.render.terminal.table import STYLES, Table, tables
from amp_matrix.render.verdict import Verdict, alike, measured, verdicts
from amp_matrix.render.words import observed, plain
from amp_matrix.survey import Cell, Survey

FINDINGS, CAVEATS = 40, 5
"""At most this many findings a device, and caveats a verdict, are written out; the rest are counted."""


def matrix(surveys: Iterable[Survey], plans: Iterable[Plan], *, coverage: Iterable[Survey] | None = None) -> Page:
    """Something that rich prints: verdicts, rejections, the matrix and findings, fitted to the console it prints on.

    `coverage` is every survey, where `surveys` are what a filter left of them: the line that says what was measured,
    and what counts, follow `coverage`.
    """
    given = tuple(surveys)
    whole = blocks(given if coverage is None else coverage)
    return Page(whole if coverage is None else parts(given, whole), verdicts(plans, whole), whole)


@dataclass(frozen=True)
class Page:
    """What `matrix` gives. Rich asks it for lines when it knows the width and the encoding."""

    blocks: tuple[Block, ...]
    verdicts: tuple[Verdict, ...]
    whole: tuple[Block, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, 200)
        for line in _lines(self, width, options.ascii_only):
            for text in line.wrapped(console, width):
                yield ascii_only(text) if options.ascii_only else text


def _lines(page: Page, width: int, ascii_only: bool) -> Iterator[Line]:
    names = short_names(page.whole)
    yield from _head(page, names)
    for title, same in groupby(page.verdicts, key=lambda v: (v.title, v.reason, v.rejected, v.caveats)):
        yield from _why(names.get(title[0], title[0]), list(same))
    laid = [(block, tables(block, width)) for block in page.blocks]
    for block, found in laid:
        yield said("")
        yield from _block(block, names[block.title], found, ascii_only)
    yield from legend(laid, ascii_only)


def _head(page: Page, names: Mapping[str, str]) -> Iterator[Line]:
    """Every device in full, once; then the verdicts, and what was measured."""
    for block in page.whole:
        if block.facts:
            yield said(block.title, style="dim")
    if not page.whole:
        yield said("Nothing has been measured.")
    for verdict in page.verdicts:
        yield said(f"{names.get(verdict.title, verdict.title)}: {verdict.choice}", style="bold")
    if page.whole:
        yield said(measured(page.whole, names), style="dim")


def _why(name: str, verdicts: Sequence[Verdict]) -> Iterator[Line]:
    """Why the plans of one device for some tasks, all with the same reasons, are what they are."""
    verdict = verdicts[0]
    if not (verdict.reason or verdict.rejected or verdict.caveats):
        return
    yield said("")
    yield said(f"{name}, to {' or '.join(v.task for v in verdicts)}")
    if verdict.reason:
        yield said(verdict.reason, 2)
    for found in alike(verdict.rejected):
        yield Line(Text("not ").append(found.precision, style="bold").append(f": {found.line}"), 2, 4)
    for caveat in verdict.caveats[:CAVEATS]:
        yield said(f"caveat: {caveat}", 2, style="yellow")
    if len(verdict.caveats) > CAVEATS:
        more = len(verdict.caveats) - CAVEATS
        yield said(f"and {more} more {'caveat' if more == 1 else 'caveats'}", 2, style="yellow")


def _block(block: Block, name: str, tables: Sequence[Table], ascii_only: bool) -> Iterator[Line]:
    yield said(name, style="bold")
    yield said(block.tally, 2)
    for uniform in block.uniform:
        yield said(f"{plain(uniform.precision)}: {uniform.line}", 2)
    for table in tables:
        yield said("")
        yield from table.lines(ascii_only)
    yield from _findings(grouped(block.failing))
    yield from _observed([cell for cell in block.cells if cell.outcome.status is None])


def _findings(found: Sequence[Finding]) -> Iterator[Line]:
    for tier, same in groupby(found[:FINDINGS], key=lambda finding: finding.cells[0].tier):
        yield said("")
        yield said(f"Findings in {tier} cells", style="bold")
        for finding in same:
            cell = finding.cells[0]
            yield Line(Text(finding.id, style=STYLES[cell.outcome.status]).append(f": {finding.why}", "none"), 2, 4)
    if len(found) > FINDINGS:
        yield said(f"and {len(found) - FINDINGS} more: amp-probe report --html", 2)


def _observed(cells: Sequence[Cell]) -> Iterator[Line]:
    """The dtypes that came out in simulated cells, which have no status."""
    if not cells:
        return
    yield said("")
    yield said("Dtypes seen in simulated cells", style="bold")
    for cell in cells[:FINDINGS]:
        yield said(plain(cell.id), 2, style=STYLES[None])
        for stage, dtypes in observed(cell) or [("", "none")]:
            yield said(": ".join(filter(None, (stage, dtypes))), 4)
    if len(cells) > FINDINGS:
        yield said(f"and {len(cells) - FINDINGS} more: amp-probe report --html", 2)
