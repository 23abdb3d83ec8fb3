"""Surveys together: merged, the evidence that counts selected, two matrices compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from amp_matrix import essential
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

    On each device the newest survey counts, by start and then id, and within one the worst of a cell's repeats; of
    several devices (`cuda:0`, `cuda:1`) the worst. What was not tried (UNTRIED) never hides what was, and what was not
    measured never hides what was. A timing that is too noisy to tell does not hide an older one that is not: `_clear`.
    """
    found: dict[str, dict[str, list[Known]]] = {}
    for survey in surveys:
        if identity is not None and survey.environment.identity != identity:
            continue
        name = survey_id(survey)
        for cell in _one_each(survey.cells):
            known = Known(cell, name, survey.started, survey.environment, survey.device)
            found.setdefault(cell.id, {}).setdefault(survey.device, []).append(known)
    return {cell: _worst([_counting(same) for same in devices.values()]) for cell, devices in sorted(found.items())}


def diff(old: Iterable[Survey], new: Iterable[Survey]) -> tuple[Change, ...]:
    """The cells whose status differs between two matrices, by device and cell; on each side the newest counts."""
    before, after = _by_device(old), _by_device(new)
    places = sorted({*before, *after})
    return tuple(change for place in places for change in _change(place, before.get(place), after.get(place)))


def _counting(same: Sequence[Known]) -> Known:
    """What counts of a cell's results on one device."""
    if len(same) == 1:
        return same[0]
    newest = max(same, key=_rank)
    return _clear(newest, same) if newest.cell.probe.startswith("speed.") else newest


def _rank(known: Known) -> tuple[bool, bool, str, str]:
    return (*_weight(known.cell), known.started, known.survey)


def _clear(newest: Known, same: Iterable[Known]) -> Known:
    """The newest timing, or where that is too noisy to tell, the newest one that tells.

    Never one from before a failure, another revision or other settings, and never a gain above what a later timing
    leaves possible: each of these could only be bolder.
    """
    possible = math.inf
    for older in sorted(same, key=_rank, reverse=True):
        gain = essential.gain(older.cell)
        if gain is None or not _like(older, newest) or gain.low > possible:
            break
        if essential.pays(gain) is not None:
            return older
        possible = min(possible, gain.high)
    return newest


def _like(older: Known, newest: Known) -> bool:
    """Whether an older timing may stand for a newer one."""
    cell, settings = older.cell, older.environment.scoped
    same = cell.revision == newest.cell.revision and settings == newest.environment.scoped
    return same and cell.evidence == "measured" and cell.outcome.status in _WORKS


def _worst(several: Sequence[Known]) -> Known:
    """Of one cell on several devices that are alike: the weightiest, of those the worst, then the slowest."""
    if len(several) == 1:
        return several[0]
    return max(several, key=lambda k: (*_weight(k.cell), -_severity(k.cell.outcome.status), -_speed(k.cell), *_rank(k)))


def _speed(cell: Cell) -> float:
    """The least gain that a cell vouches for: 0 where it measured none."""
    gain = essential.gain(cell)
    return gain.low if gain else 0.0


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
