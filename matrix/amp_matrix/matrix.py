"""Surveys together: merged, the evidence that counts selected, two matrices compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from amp_matrix.codec import survey_id
from amp_matrix.survey import SEVERITY, Cell, Environment, Status, Survey

UNTRIED = ("filtered", "missing_dependency", "device_missing", "interrupted")
"""Codes of a `not_run` that says nothing of the device, and so never hides what was seen before."""
_WORKS = (Status.OK, Status.EMULATED)

ChangeKind = Literal["added", "removed", "broken", "fixed", "changed"]


class Known(msgspec.Struct, frozen=True):
    """A cell that counts, and the survey it stands in: its id, its start (UTC, ISO 8601), where it was measured."""

    cell: Cell
    survey: str
    started: str
    environment: Environment
    device: str


class Change(msgspec.Struct, frozen=True):
    """A cell whose status differs. `broken`: it worked before; `fixed`: it is `ok` now and failed before.

    A status is None where the cell is missing on that side, or simulated.
    """

    cell: str
    device: str
    before: Status | None
    after: Status | None
    kind: ChangeKind


def merge(*many: Iterable[Survey]) -> tuple[Survey, ...]:
    """The surveys of all, each once, by id."""
    by_id = {survey_id(survey): survey for surveys in many for survey in surveys}
    return tuple(by_id[name] for name in sorted(by_id))


def select(surveys: Iterable[Survey], identity: Mapping[str, str] | None = None) -> dict[str, Known]:
    """The evidence that counts for each cell's id, from the surveys whose identity is equal (None: from all).

    The newest survey counts, by start and then id; within one the worst of a cell's repeats. What was not tried
    (UNTRIED) never hides what was, and what was not measured never hides what was.
    """
    best: dict[str, tuple[tuple[bool, bool, str, str], Known]] = {}
    for survey in surveys:
        if identity is not None and survey.environment.identity != identity:
            continue
        name = survey_id(survey)
        for cell in _one_each(survey.cells):
            rank = (*_weight(cell), survey.started, name)
            if cell.id not in best or rank > best[cell.id][0]:
                best[cell.id] = rank, Known(cell, name, survey.started, survey.environment, survey.device)
    return {cell: known for cell, (_, known) in sorted(best.items())}


def diff(old: Iterable[Survey], new: Iterable[Survey]) -> tuple[Change, ...]:
    """The cells whose status differs between two matrices, by device and cell; on each side the newest counts."""
    before, after = _by_device(old), _by_device(new)
    places = sorted({*before, *after})
    return tuple(change for place in places for change in _change(place, before.get(place), after.get(place)))


def _weight(cell: Cell) -> tuple[bool, bool]:
    """How much a cell says: tried before untried, measured before not."""
    untried = cell.outcome.status is Status.NOT_RUN and cell.outcome.code in UNTRIED
    return not untried, cell.evidence == "measured"


def _one_each(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Of each cell's repeats the one that counts: the weightiest, and of those the worst."""
    repeats: dict[str, list[Cell]] = {}
    for cell in cells:
        repeats.setdefault(cell.id, []).append(cell)
    return (_heaviest(same) for same in repeats.values())


def _heaviest(same: Sequence[Cell]) -> Cell:
    if len(same) == 1:
        return same[0]
    return max(same, key=lambda cell: (*_weight(cell), -_severity(cell.outcome.status)))


def _severity(status: Status | None) -> int:
    """The place in SEVERITY, 0 the worst; a simulated cell's comes last."""
    return len(SEVERITY) if status is None else SEVERITY.index(status)


def _by_device(surveys: Iterable[Survey]) -> dict[tuple[str, str], Known]:
    groups: dict[str, list[Survey]] = {}
    for survey in surveys:
        groups.setdefault(survey.device, []).append(survey)
    return {(device, cell): known for device, group in groups.items() for cell, known in select(group).items()}


def _change(place: tuple[str, str], old: Known | None, new: Known | None) -> Iterator[Change]:
    device, cell = place
    before, after = _status(old), _status(new)
    if old is None:
        yield Change(cell, device, None, after, "added")
    elif new is None:
        yield Change(cell, device, before, None, "removed")
    elif before is not after:
        yield Change(cell, device, before, after, _kind(before, after))


def _status(known: Known | None) -> Status | None:
    return known.cell.outcome.status if known else None


def _kind(before: Status | None, after: Status | None) -> ChangeKind:
    """A cell that did not run is neither broken nor fixed: nothing is known of it."""
    if Status.NOT_RUN in (before, after) or before is None or after is None:
        return "changed"
    if before in _WORKS and _severity(after) < _severity(before):
        return "broken"
    return "fixed" if after is Status.OK else "changed"
