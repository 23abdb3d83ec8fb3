"""Surveys on a terminal: the verdict first, then what was rejected, then the matrix in the width that there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from amp_matrix.plan import Plan
from amp_matrix.render.grid import Block, Family, Row, blocks
from amp_matrix.render.verdict import Verdict, alike, measured, number_of_cells, verdicts
from amp_matrix.render.words import LOOKS, counts, gain, plain, present
from amp_matrix.survey import Cell, Status, Survey

FEW_CELLS = 400
"""Up to this many cells a block shows all its rows; beyond, only rows with something other than `ok`."""

_STYLES: dict[Status | None, str] = {
    Status.OK: "green",
    Status.EMULATED: "yellow",
    Status.UNSUPPORTED: "blue",
    Status.INERT: "yellow",
    Status.INACCURATE: "bold yellow",
    Status.NONFINITE: "bold red",
    Status.ERROR: "red",
    Status.TIMEOUT: "magenta",
    Status.CRASH: "bold magenta",
    Status.NOT_RUN: "dim",
    None: "cyan",
}
_NARROW, _WIDE, _LABEL = 10, 14, 20


def matrix(surveys: Iterable[Survey], plans: Iterable[Plan]) -> Page:
    """Something that rich prints: verdicts, rejections and the matrix, fitted to the console it is printed on."""
    grid = blocks(surveys)
    return Page(grid, verdicts(plans, grid))


@dataclass(frozen=True)
class Page:
    """What `matrix` gives. Rich asks it for lines when it knows the width and the encoding."""

    blocks: tuple[Block, ...]
    verdicts: tuple[Verdict, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, 200)
        for line in _lines(self, width, options.ascii_only):
            yield _ascii(line) if options.ascii_only else line


def _lines(page: Page, width: int, ascii_only: bool) -> Iterator[Text]:
    if not page.blocks:
        yield Text("Nothing has been measured.")
    for verdict in page.verdicts:
        yield Text(verdict.sentence, style="bold")
    if page.blocks:
        yield Text(measured(page.blocks), style="dim")
    for title, same in groupby(page.verdicts, key=lambda v: (v.title, v.reason, v.rejected, v.caveats)):
        yield from _why(title[0], list(same))
    for block in page.blocks:
        yield Text()
        yield from _block(block, width, ascii_only)
    cells = [cell for block in page.blocks for cell in block.cells]
    if cells:
        yield Text()
        yield from _legend(cells, ascii_only)


def _why(title: str, verdicts: Sequence[Verdict]) -> Iterator[Text]:
    """Why the plans of one device for some tasks, all with the same reasons, are what they are."""
    verdict = verdicts[0]
    if not (verdict.reason or verdict.rejected or verdict.caveats):
        return
    yield Text()
    yield Text(f"{title}, to {' or '.join(v.task for v in verdicts)}")
    if verdict.reason:
        yield Text(f"  {verdict.reason}")
    for found in alike(verdict.rejected):
        yield Text("  not ").append(found.precision, style="bold").append(f": {found.line}")
    if verdict.caveats:
        shown, more = verdict.caveats[:5], len(verdict.caveats) - 5
        yield Text(f"  caveats: {', '.join(shown)}{f' and {more} more' if more > 0 else ''}", style="yellow")


def _block(block: Block, width: int, ascii_only: bool) -> Iterator[Text]:
    yield Text(block.title, style="bold")
    yield Text(f"  {number_of_cells(len(block.cells))}: {counts(block.cells)}")
    for uniform in block.uniform:
        word = LOOKS[uniform.status].word
        reason = f": {uniform.reason}" if uniform.reason else ""
        yield Text(f"  {plain(uniform.precision)}: {word} in all {uniform.count} cells{reason}")
    for columns, label, size in _layout(block, width):
        yield Text()
        yield from _header(columns, label, size)
        for family in block.families:
            yield from _family(family, columns, label, size, len(block.cells) > FEW_CELLS, ascii_only)


def _layout(block: Block, width: int) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """Tables that fit the width: the columns of each, the label's width, a column's width."""
    columns = block.columns
    names = [
        name
        for family in block.families
        for name, _ in _merged(family.rows, columns, Counter(row.probe for row in family.rows))
    ]
    longest = max(map(cell_len, names), default=0) + 3
    size = _WIDE if longest + _WIDE * len(columns) <= width else _NARROW
    fit = max(1, (width - _LABEL) // size)
    for start in range(0, len(columns), fit):
        some = columns[start : start + fit]
        yield some, max(_LABEL, min(longest, width - size * len(some))), size


def _header(columns: Sequence[str], label: int, size: int) -> Iterator[Text]:
    """Precisions as column heads, broken at their hyphens: `bf16` over `mixed` over `+te`."""
    parts = [plain(c).replace("-", "\n").replace("+", "\n+").split("\n") for c in columns]
    for level in range(max((len(p) for p in parts), default=0)):
        words = [p[level] if level < len(p) else "" for p in parts]
        yield Text(" " * label + "".join(_fit(word, size) for word in words).rstrip(), style="bold")


def _family(
    family: Family, columns: Sequence[str], label: int, size: int, only_findings: bool, ascii_only: bool
) -> Iterator[Text]:
    rows = [row for row in family.rows if any(c in row.cells for c in columns)]
    if not rows:
        return
    quiet = [row for row in rows if only_findings and _all_ok(row, columns)]
    said = f"  {len(quiet)} of {len(rows)} rows ok throughout" if quiet else ""
    yield Text(plain(family.name), style="bold").append(said, style="not bold dim")
    left_out = set(map(id, quiet))
    variants = Counter(row.probe for row in family.rows)
    for name, row in _merged([row for row in rows if id(row) not in left_out], columns, variants):
        line = Text(_fit(f"  {name}", label, ".." if ascii_only else "…"))
        for precision in columns:
            line.append_text(_cell(row.cells[precision].cell if precision in row.cells else None, size, ascii_only))
        line.rstrip()
        yield line


def _all_ok(row: Row, columns: Sequence[str]) -> bool:
    statuses = {row.cells[c].cell.outcome.status for c in columns if c in row.cells}
    return statuses <= {Status.OK, None}


def _merged(rows: Sequence[Row], columns: Sequence[str], variants: Mapping[str, int]) -> list[tuple[str, Row]]:
    """Variants of a probe that came out alike, as one row: `softmax [large, row]`, `softmax [all 7]`."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        alike = tuple(_face(row.cells[c].cell) if c in row.cells else None for c in columns)
        groups.setdefault((row.probe, alike), []).append(row)
    return [(_name(group, variants[group[0].probe]), group[0]) for group in groups.values()]


def _name(rows: Sequence[Row], variants: int) -> str:
    first = rows[0]
    if len(rows) == 1:
        return plain(first.label)
    shown, more = ", ".join(plain(row.variant) for row in rows[:2]), len(rows) - 2
    alike = f"all {variants}" if len(rows) == variants else f"{shown} +{more}" if more else shown
    return f"{plain(first.probe.partition('.')[2] or first.probe)} [{alike}]"


def _face(cell: Cell) -> tuple[object, ...]:
    return cell.outcome.status, cell.evidence, gain(cell)


def _cell(cell: Cell | None, size: int, ascii_only: bool) -> Text:
    if cell is None:
        return Text(" " * size)
    look = LOOKS[cell.outcome.status]
    words = [look.word if size >= _WIDE else look.short, gain(cell)]
    if len(" ".join(words)) > size - 3 and words[1]:
        del words[0]
    word = " ".join(filter(None, words))
    mark = "?" if cell.evidence == "claimed" else ""
    icon = look.ascii if ascii_only else look.icon
    return Text(_fit(f"{icon} {word}{mark}", size), style=_STYLES[cell.outcome.status])


def _legend(cells: list[Cell], ascii_only: bool) -> Iterator[Text]:
    for status in present(cells):
        look = LOOKS[status]
        icon = look.ascii if ascii_only else look.icon
        yield Text(f"{icon} {look.word:<12}", style=_STYLES[status]).append(look.meaning, style="default not bold")
    if any(cell.evidence == "claimed" for cell in cells):
        yield Text("? claimed by a rule, not measured")


def _fit(text: str, size: int, ellipsis: str = "…") -> str:
    """Text padded, or cut with an ellipsis, to a number of terminal columns with one left free."""
    room = size - 1
    if cell_len(text) > room:
        text = set_cell_size(text, max(0, room - len(ellipsis))) + ellipsis
    return set_cell_size(text, size)


def _ascii(line: Text) -> Text:
    plain_line = line.plain.replace("…", ".").encode("ascii", "replace").decode()
    return Text(plain_line, spans=line.spans, style=line.style)
