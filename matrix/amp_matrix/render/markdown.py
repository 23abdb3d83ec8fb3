"""Surveys as GitHub-flavoured markdown, for a job summary: under 1 MiB, trimmed with a note."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from amp_matrix.plan import Plan
from amp_matrix.render.grid import Block, Row, blocks
from amp_matrix.render.verdict import Verdict, alike, measured, number_of_cells, verdicts
from amp_matrix.render.words import LOOKS, counts, gain, plain, present, worst_error
from amp_matrix.survey import Cell, Status, Survey

LIMIT = 1024 * 1024 - 16 * 1024
"""The largest page in bytes; GitHub refuses a job summary of more than 1 MiB, and other steps may write there too."""

FEW_CELLS = 1200
"""Up to this many cells a block shows all its rows; beyond, only rows with something other than `ok`."""

_MARKUP = re.compile(r"^[^A-Za-z]|[^\w\s.,;:/=%+()'\"\-]|_|:(?=\S)|(?<=www)\.", re.IGNORECASE)
_LINKED = re.compile(r"(&#64;|&#35;)")


def render(surveys: Iterable[Survey], plans: Iterable[Plan]) -> str:
    """Verdicts, rejections, the matrix a device, and what failed. Untrusted text cannot become markup or a mention."""
    grid = blocks(surveys)
    return _trimmed(_lines(grid, verdicts(plans, grid)))


def _trimmed(lines: Iterator[str]) -> str:
    kept, size, left_out = [], 0, 0
    for line in lines:
        size += len(line.encode()) + 1
        if size <= LIMIT and not left_out:
            kept.append(line)
        else:
            left_out += 1
    if left_out:
        if sum(line.startswith("<details>") for line in kept) > kept.count("</details>"):
            kept += ["", "</details>"]
        kept += ["", f"_Trimmed to fit: {left_out} more lines. `amp-probe report --html` has everything._"]
    return "\n".join(kept) + "\n"


def _lines(grid: tuple[Block, ...], said: tuple[Verdict, ...]) -> Iterator[str]:
    yield "# amp-probe"
    yield ""
    for verdict in said:
        yield f"**{_text(verdict.sentence)}**"
        yield ""
    yield _text(measured(grid), limit=4000) if grid else "Nothing has been measured."
    for verdict in said:
        yield from _why(verdict)
    for block in grid:
        yield ""
        yield f"## {_text(block.title)}"
        yield ""
        yield from _block(block)
    cells = [cell for block in grid for cell in block.cells]
    if cells:
        yield ""
        yield " · ".join(f"{LOOKS[s].icon} {LOOKS[s].word}: {LOOKS[s].meaning}" for s in present(cells))


def _why(verdict: Verdict) -> Iterator[str]:
    if verdict.reason or verdict.rejected or verdict.caveats:
        yield ""
        yield f"### {_text(verdict.title)}, to {_text(verdict.task)}"
        yield ""
    if verdict.reason:
        yield _text(verdict.reason)
        yield ""
    if verdict.rejected:
        yield from _table("Not chosen", "Cell", "Status", "Why")
        for r in alike(verdict.rejected):
            yield _row(_text(r.precision), _code(r.cell), _text(r.status), _text(r.reason))
        yield ""
    if verdict.caveats:
        shown, more = verdict.caveats[:10], len(verdict.caveats) - 10
        yield f"Caveats: {', '.join(map(_code, shown))}{f' and {more} more' if more > 0 else ''}"
        yield ""


def _block(block: Block) -> Iterator[str]:
    yield f"{number_of_cells(len(block.cells))}: {counts(block.cells)}."
    for uniform in block.uniform:
        reason = f": {_text(uniform.reason)}" if uniform.reason else ""
        yield f"{_text(uniform.precision)}: {LOOKS[uniform.status].word} in all {uniform.count} cells{reason}."
    yield ""
    failing = [cell for cell in block.cells if _failed(cell) and cell.precision in block.columns]
    if failing:
        yield from _findings(failing)
    if block.columns:
        yield from _matrix(block)


def _findings(cells: list[Cell]) -> Iterator[str]:
    yield from _table("Finding", "Status", "Tier", "Stage", "Error / limit (eps)", "Why")
    for cell in sorted(cells, key=lambda c: c.tier != "essential"):
        outcome, (error, limit) = cell.outcome, worst_error(cell)
        look = LOOKS[outcome.status]
        over = f"{error} / {limit}" if error and outcome.status is Status.INACCURATE else ""
        status = f"{look.icon} {look.word}"
        yield _row(_code(cell.id), status, cell.tier, _text(outcome.stage), over, _text(outcome.reason))
    yield ""


def _matrix(block: Block) -> Iterator[str]:
    only_findings = len(block.cells) > FEW_CELLS
    yield f"<details><summary>The matrix{', rows with findings' if only_findings else ''}</summary>"
    yield ""
    yield from _table("Probe", *map(_text, block.columns))
    for family in block.families:
        for row in family.rows:
            if not only_findings or any(_failed(k.cell) for p, k in row.cells.items() if p in block.columns):
                yield _row(_code(f"{family.name}.{row.label}"), *_faces(row, block.columns))
    yield ""
    yield "</details>"


def _faces(row: Row, columns: tuple[str, ...]) -> Iterator[str]:
    for precision in columns:
        if precision not in row.cells:
            yield ""
            continue
        cell = row.cells[precision].cell
        look = LOOKS[cell.outcome.status]
        claimed = "(claimed)" if cell.evidence == "claimed" else ""
        yield " ".join(filter(None, (look.icon, look.word, gain(cell), claimed)))


def _failed(cell: Cell) -> bool:
    return cell.outcome.status not in (Status.OK, None)


def _table(*heads: str) -> Iterator[str]:
    yield _row(*heads)
    yield _row(*["---"] * len(heads))


def _row(*texts: str) -> str:
    return f"| {' | '.join(texts)} |"


def _text(text: str, limit: int = 400) -> str:
    """Untrusted text in which nothing is markup, and no @name or #1 is linked: a zero-width space parts it."""
    return _LINKED.sub(r"\1&#8203;", _escaped(text, limit))


def _code(text: str) -> str:
    """Untrusted text in code type, where GitHub links no mention, issue or commit."""
    return f"<code>{_escaped(text)}</code>" if text else ""


def _escaped(text: str, limit: int = 400) -> str:
    """Every character that could be markup as a character reference."""
    return _MARKUP.sub(lambda m: f"&#{ord(m[0])};" if m[0].isascii() else m[0], plain(text, limit))
