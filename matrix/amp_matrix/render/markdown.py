"""Surveys as GitHub-flavoured markdown, for a job summary: under 1 MiB, trimmed with a note."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from amp_matrix.plan import Plan
from amp_matrix.render.grid import Block, Row, blocks, parts
from amp_matrix.render.verdict import Verdict, alike, measured, verdicts
from amp_matrix.render.words import LOOKS, NOT_ASKED, errors, face, gain, observed, plain, present
from amp_matrix.survey import Cell, Status, Survey

LIMIT = 1024 * 1024 - 16 * 1024
"""The largest page in bytes; GitHub refuses a job summary of more than 1 MiB, and other steps may write there too."""

FEW_CELLS = 1200
"""Up to this many cells a block shows all its rows; beyond, only rows with something other than `ok`."""

CAVEATS = 5
"""At most this many caveats a verdict are written out."""

_MARKUP = re.compile(
    r"^[^A-Za-z0-9]|^\d(?=\d*[.)](?:\s|$))|[^\w\s.,;:/=%+()'\"\-]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|:(?=\S)|(?<=www)\.",
    re.IGNORECASE,
)
_CODE = re.compile(r"(?!.*(?:://|www\.))[A-Za-z0-9][A-Za-z0-9_.\[\]@+:/, =()-]*", re.ASCII | re.IGNORECASE)
_CELL = re.compile(r"(\S+@[\w+-]+)(: .*)?", re.ASCII)
_LINKED = re.compile(r"(&#64;|&#35;)")


def render(surveys: Iterable[Survey], plans: Iterable[Plan], *, coverage: Iterable[Survey] | None = None) -> str:
    """Verdicts, rejections, the matrix a device, and what failed. Untrusted text cannot become markup or a mention.

    `coverage` is every survey, where `surveys` are what a filter left of them.
    """
    given = tuple(surveys)
    whole = blocks(given if coverage is None else coverage)
    grid = whole if coverage is None else parts(given, whole)
    return _trimmed(_lines(grid, verdicts(plans, whole), whole))


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


def _lines(grid: tuple[Block, ...], said: tuple[Verdict, ...], whole: tuple[Block, ...]) -> Iterator[str]:
    yield "# amp-probe"
    yield ""
    for verdict in said:
        yield f"**{_text(verdict.sentence)}**"
        yield ""
    yield _text(measured(whole), limit=4000) if whole else "Nothing has been measured."
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
        yield from (f"- {LOOKS[s].icon} {LOOKS[s].word}: {LOOKS[s].meaning}" for s in present(cells))
        yield f"- {NOT_ASKED.icon} {NOT_ASKED.word}"
        yield from ["- 1.5x to 1.9x: times fp32's speed, the interval of interleaved repeats"] * any(map(gain, cells))


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
        more = len(verdict.caveats) - CAVEATS
        yield f"Caveats: {len(verdict.caveats)}"
        yield ""
        yield from (f"- {_caveat(caveat)}" for caveat in verdict.caveats[:CAVEATS])
        yield from [f"- and {more} more"] if more > 0 else []
        yield ""


def _caveat(caveat: str) -> str:
    """A caveat whose cell, where it starts with one, is in code type."""
    found = _CELL.fullmatch(caveat)
    return f"{_code(found[1])}: {_text((found[2] or ': ')[2:])}".removesuffix(": ") if found else _text(caveat)


def _block(block: Block) -> Iterator[str]:
    yield f"{block.tally}."
    for uniform in block.uniform:
        yield f"{_text(uniform.precision)}: {_text(uniform.line)}."
    yield ""
    if block.failing:
        yield from _findings(block.failing)
    simulated = [cell for cell in block.cells if cell.outcome.status is None]
    if simulated:
        yield from _observed(simulated)
    if block.columns:
        yield from _matrix(block)


def _findings(cells: tuple[Cell, ...]) -> Iterator[str]:
    yield from _table("Finding", "Status", "Tier", "Stage", "Error of limit (eps)", "Why")
    for cell in cells:
        look = LOOKS[cell.outcome.status]
        status, outcome = f"{look.icon} {look.word}", cell.outcome
        yield _row(_code(cell.id), status, cell.tier, _text(outcome.stage), errors(cell), _text(outcome.reason))
    yield ""


def _observed(cells: list[Cell]) -> Iterator[str]:
    yield from _table("Simulated", "Stage", "Dtypes seen")
    for cell in cells:
        for stage, dtypes in observed(cell):
            yield _row(_code(cell.id), _text(stage), _text(dtypes, limit=4000))
    yield ""


def _matrix(block: Block) -> Iterator[str]:
    only_findings = len(block.cells) > FEW_CELLS
    yield f"<details><summary>The matrix{', rows with findings and speeds' if only_findings else ''}</summary>"
    yield ""
    yield from _table("Probe", *map(_text, block.columns))
    for family in block.families:
        for row in family.rows:
            if not only_findings or any(_tells(k.cell) for p, k in row.cells.items() if p in block.columns):
                yield _row(_code(f"{family.name}.{row.label}"), *_faces(row, block))
    yield ""
    yield "</details>"


def _faces(row: Row, block: Block) -> Iterator[str]:
    for precision in block.columns:
        if precision not in row.cells:
            yield "" if block.asked(row.probe, row.variant, precision) else NOT_ASKED.icon
            continue
        cell = row.cells[precision].cell
        claimed = " (claimed)" if cell.evidence == "claimed" else ""
        said = _text(face(cell)) if cell.outcome.status is None else face(cell)
        yield f"{LOOKS[cell.outcome.status].icon} {said}{claimed}"


def _tells(cell: Cell) -> bool:
    """Whether a cell says more than that it is ok."""
    return cell.outcome.status is not Status.OK or bool(gain(cell))


def _table(*heads: str) -> Iterator[str]:
    yield _row(*heads)
    yield _row(*["---"] * len(heads))


def _row(*texts: str) -> str:
    return f"| {' | '.join(texts)} |"


def _text(text: str, limit: int = 400) -> str:
    """Untrusted text in which nothing is markup, and no @name or #1 is linked: a zero-width space parts it."""
    return _LINKED.sub(r"\1&#8203;", _escaped(text, limit))


def _code(text: str) -> str:
    """Untrusted text in code type, where GitHub links no mention, issue or commit; in backticks where that is safe."""
    if _CODE.fullmatch(line := plain(text)):
        return f"`{line}`"
    return f"<code>{_escaped(text)}</code>" if text else ""


def _escaped(text: str, limit: int = 400) -> str:
    """Every character that could be markup as a character reference."""
    return _MARKUP.sub(lambda m: f"&#{ord(m[0])};" if m[0].isascii() else m[0], plain(text, limit))
