"""A block's cells as tables that fit a width: words in full where there is room, else the short ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from amp_matrix.render.grid import Block, Family, Row
from amp_matrix.render.terminal.line import Line, fit
from amp_matrix.render.words import LOOKS, NOT_ASKED, face, gain, plain
from amp_matrix.survey import Cell, Status

FEW_CELLS = 400
"""Up to this many cells a block shows all its rows; beyond, those that are ok throughout are counted, but for speed."""

STYLES: dict[Status | None, str] = {
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
_LABEL, _WIDEST, _SPEED = 20, 32, "speed"


@dataclass(frozen=True)
class Section:
    """A family's heading, how many of its rows are set aside as ok, and the rows that are shown, by name."""

    name: str
    aside: str
    rows: tuple[tuple[str, Row], ...]


@dataclass(frozen=True)
class Table:
    """Some sections in some columns, each of its width. `short` where the short words for statuses are used."""

    block: Block
    sections: tuple[Section, ...]
    columns: tuple[str, ...]
    label: int
    widths: tuple[int, ...]
    short: bool

    @property
    def speed(self) -> bool:
        """Whether it is the table of speeds."""
        return any(section.name == _SPEED for section in self.sections)

    def lines(self, ascii_only: bool) -> Iterator[Line]:
        """The heads of the columns, then each family with its rows."""
        if any(section.rows for section in self.sections):
            yield from self._header()
        for section in self.sections:
            yield Line(Text(section.name, style="bold").append(section.aside, style="not bold dim"))
            for name, row in section.rows:
                yield from self._row(name, row, ascii_only)

    def _header(self) -> Iterator[Line]:
        """Precisions as column heads, broken at their hyphens: `bf16` over `mixed` over `+te`."""
        parts = [_parts(column) for column in self.columns]
        for level in range(max(map(len, parts), default=0)):
            words = [part[level] if level < len(part) else "" for part in parts]
            heads = "".join(fit(word, size) for word, size in zip(words, self.widths, strict=True))
            yield Line(Text(" " * self.label + heads.rstrip(), style="bold"), hang=0)

    def _row(self, name: str, row: Row, ascii_only: bool) -> Iterator[Line]:
        """The row in one line; a name too long for its column has a line of its own above the cells."""
        label = f"  {name}"
        if cell_len(label) >= self.label:
            yield Line(Text(name), 2, 4)
            label = ""
        line = Text(fit(label, self.label))
        for column, size in zip(self.columns, self.widths, strict=True):
            text, style = shown(self.block, row, column, self.short, ascii_only)
            line.append(fit(text, size), style=style)
        line.rstrip()
        yield Line(line, hang=0)


def tables(block: Block, width: int) -> tuple[Table, ...]:
    """The tables of a block: its families, then speed by itself, each in as many tables as the width needs."""
    speed = [family for family in block.families if family.name == _SPEED]
    rest = [family for family in block.families if family.name != _SPEED]
    return tuple(table for some in (rest, speed) for table in _laid(block, some, width))


def shown(block: Block, row: Row, column: str, short: bool, ascii_only: bool) -> tuple[str, str]:
    """A cell's text and style; nothing for one that the caller filtered out."""
    if column not in row.cells:
        asked = block.asked(row.probe, row.variant, column)
        return "" if asked else NOT_ASKED.ascii if ascii_only else NOT_ASKED.icon, "dim"
    cell = row.cells[column].cell
    look = LOOKS[cell.outcome.status]
    mark = "?" if cell.evidence == "claimed" else ""
    return f"{look.ascii if ascii_only else look.icon} {face(cell, short)}{mark}", STYLES[cell.outcome.status]


def _laid(block: Block, families: Sequence[Family], width: int) -> Iterator[Table]:
    columns = tuple(c for c in block.columns if any(c in row.cells for family in families for row in family.rows))
    sections = tuple(found for family in families if (found := _section(block, family, columns)))
    longest = max((cell_len(name) + 3 for section in sections for name, _ in section.rows), default=_LABEL)
    sizes = _sizes(block, sections, columns, short=False)
    short = longest + sum(sizes) > width
    sizes = _sizes(block, sections, columns, short=True) if short else sizes
    for start, end in _split(sizes, width - min(longest, _LABEL)):
        label = max(min(longest, _LABEL), min(longest, width - sum(sizes[start:end])))
        some = sections if start == 0 else tuple(section for section in sections if section.rows)
        if some:
            yield Table(block, some, columns[start:end], label, tuple(sizes[start:end]), short)


def _sizes(block: Block, sections: Sequence[Section], columns: Sequence[str], short: bool) -> list[int]:
    """Each column's width: its longest word and two columns of space, at most _WIDEST."""
    rows = [row for section in sections for _, row in section.rows]
    texts = {c: [*_parts(c), *(shown(block, row, c, short, False)[0] for row in rows)] for c in columns}
    return [min(_WIDEST, max(map(cell_len, texts[column])) + 2) for column in columns]


def _split(sizes: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """Runs of columns that fit the room, at least one column each."""
    start, used = 0, 0
    for number, size in enumerate(sizes):
        if used and used + size > room:
            yield start, number
            start, used = number, 0
        used += size
    if sizes:
        yield start, len(sizes)


def _section(block: Block, family: Family, columns: Sequence[str]) -> Section | None:
    rows = [row for row in family.rows if any(c in row.cells for c in columns)]
    if not rows:
        return None
    quiet = {id(row) for row in rows if len(block.cells) > FEW_CELLS and _all_ok(row, columns)}
    aside = f"  {len(quiet)} of {len(rows)} {'row' if len(rows) == 1 else 'rows'} ok throughout" if quiet else ""
    variants = Counter(row.probe for row in family.rows)
    return Section(
        plain(family.name), aside, tuple(_merged([r for r in rows if id(r) not in quiet], columns, variants))
    )


def _all_ok(row: Row, columns: Sequence[str]) -> bool:
    cells = [row.cells[c].cell for c in columns if c in row.cells]
    return {cell.outcome.status for cell in cells} <= {Status.OK} and not any(map(gain, cells))


def _merged(rows: Sequence[Row], columns: Sequence[str], variants: Mapping[str, int]) -> Iterator[tuple[str, Row]]:
    """Variants of a probe that came out alike, as one row: `softmax [large, row]`, `softmax [all 7]`."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        alike = tuple(_key(row.cells[c].cell) if c in row.cells else None for c in columns)
        groups.setdefault((row.probe, alike), []).append(row)
    for group in groups.values():
        yield _name(group, variants[group[0].probe]), group[0]


def _name(rows: Sequence[Row], variants: int) -> str:
    first = rows[0]
    if len(rows) == 1:
        return plain(first.label)
    names, more = ", ".join(plain(row.variant) for row in rows[:2]), len(rows) - 2
    alike = f"all {variants}" if len(rows) == variants else f"{names} +{more}" if more else names
    return f"{plain(first.probe.partition('.')[2] or first.probe)} [{alike}]"


def _key(cell: Cell) -> tuple[object, ...]:
    return cell.outcome.status, cell.evidence, face(cell)


def _parts(column: str) -> list[str]:
    return plain(column).replace("-", "\n").replace("+", "\n+").split("\n")
