"""The gate: requirements and baselines against what is known here. Pure; what it finds, others print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from amp_matrix import essential
from amp_matrix.essential import Blocker, Essential
from amp_matrix.matrix import Known
from amp_matrix.requirement import Requirement
from amp_matrix.survey import Environment, Status, Survey

Verdict = Literal["met", "failed", "not_applicable", "fixed", "stale"]


class Place(msgspec.Struct, frozen=True):
    """A device that is here, its environment now, and what `matrix.select` gives for that environment's identity.

    `others` are surveys of other environments, only to say what has changed since.
    """

    device: str
    now: Environment
    known: Mapping[str, Known]
    others: tuple[Survey, ...] = ()

    @property
    def kind(self) -> str:
        """`cuda` for `cuda:0`."""
        return self.device.partition(":")[0]


class Finding(msgspec.Struct, frozen=True):
    """What the gate says of one requirement on one device, or of one cell against the baseline.

    `subject` is the requirement's text or the baseline's id. Verdicts: `met`; `failed`; `not_applicable`, where its
    device is absent or its marker does not hold; for a baseline `fixed`, and `stale`, an id that no cell here has.
    """

    source: Literal["requirement", "baseline"]
    subject: str
    device: str
    verdict: Verdict
    reason: str
    cell: str = ""
    status: str = ""


def failed(findings: Iterable[Finding]) -> bool:
    """Whether the gate is closed."""
    return any(f.verdict == "failed" for f in findings)


def evaluate(
    requirements: Iterable[Requirement],
    places: Sequence[Place],
    *,
    strict: bool = False,
    host: Mapping[str, str] | None = None,
) -> tuple[Finding, ...]:
    """A finding for every requirement on every device that it speaks of.

    What was never measured fails. With `strict` an absent device fails too. `host` gives the versions that markers ask
    for (torch, macos, python) where an environment does not say.
    """
    return tuple(f for requirement in requirements for f in _findings(requirement, places, strict, host or {}))


def versions(environment: Environment) -> dict[str, str]:
    """The versions that an environment knows of those that markers ask for."""
    identity, recorded = environment.identity, environment.recorded
    found = {
        "torch": identity.get("torch", ""),
        "macos": recorded.get("macos_patch", "") or identity.get("macos", ""),
        "python": recorded.get("python", ""),
    }
    return {name: version for name, version in found.items() if version}


def _findings(
    requirement: Requirement, places: Sequence[Place], strict: bool, host: Mapping[str, str]
) -> Iterator[Finding]:
    spoken_of = [place for place in places if requirement.speaks_of(place.device)]
    if not spoken_of:
        yield _absent(requirement, places, strict, host)
    for place in spoken_of:
        if requirement.marker.holds({**host, **versions(place.now)}):
            yield _judged(requirement, place)
        else:
            yield _finding(requirement, place.device, "not_applicable", f"{requirement.marker} does not hold here")


def _absent(requirement: Requirement, places: Sequence[Place], strict: bool, host: Mapping[str, str]) -> Finding:
    """No device here that it speaks of. A marker that does not hold excuses it even where that is strict."""
    device = requirement.device
    known: dict[str, str] = {}
    for place in places:
        known |= versions(place.now)
    if not requirement.marker.holds({**known, **host}):
        return _finding(requirement, device, "not_applicable", f"{requirement.marker} does not hold here")
    if not device:
        return _finding(requirement, "", "failed", "no device was measured here; run amp-probe run")
    return _finding(requirement, device, "failed" if strict else "not_applicable", f"there is no {device} here")


def _judged(requirement: Requirement, place: Place) -> Finding:
    stop = _blocker(requirement, place)
    if stop is None:
        return _finding(requirement, place.device, "met", _merit(requirement, place))
    return _finding(requirement, place.device, "failed", stop.reason, stop)


def _blocker(requirement: Requirement, place: Place) -> Blocker | None:
    known, now, task = place.known, place.now, requirement.task
    if not requirement.cell:
        return essential.first_blocker(known, requirement.precision, task, now, others=place.others)
    wanted = Essential(requirement.cell, essential.revision(requirement.cell))
    stop = essential.blocker(known, wanted, task, now, others=place.others)
    return stop or (_too_slow(requirement, place) if requirement.floor else None)


def _too_slow(requirement: Requirement, place: Place) -> Blocker | None:
    """The gain's lower bound decides: what may be noise is no gain."""
    cell = requirement.cell
    gain = essential.gain(place.known[cell].cell)
    if gain is None:
        return Blocker(cell, "unknown", f"{cell} holds no measured speed")
    if gain.low >= requirement.floor:
        return None
    return Blocker(
        cell, "ok", f"{cell} was measured at {gain}, and {requirement.floor:g}x is required of its lower bound"
    )


def _merit(requirement: Requirement, place: Place) -> str:
    if not requirement.cell:
        return f"every essential cell to {requirement.task} is ok"
    gain = essential.gain(place.known[requirement.cell].cell) if requirement.floor else None
    return f"{requirement.cell} was measured at {gain}" if gain else f"{requirement.cell} is ok"


def _finding(
    requirement: Requirement, device: str, verdict: Verdict, reason: str, stop: Blocker | None = None
) -> Finding:
    return Finding(
        source="requirement",
        subject=requirement.text,
        device=device,
        verdict=verdict,
        reason=reason,
        cell=stop.cell if stop else requirement.cell,
        status=stop.status if stop else "",
    )


def failing(places: Iterable[Place]) -> dict[str, Finding]:
    """Every measured cell that fails, by its kind of device and id: `cuda/op.gelu@fp32`.

    Neither `not_run` fails nor what is `unsupported` by declaration, as tf32 is off cuda.
    """
    found: dict[str, Finding] = {}
    for place in places:
        for cell, known in place.known.items():
            outcome = known.cell.outcome
            declared = outcome.status is Status.UNSUPPORTED and outcome.code == "declared"
            if _measured(known) and not declared and outcome.status not in (Status.OK, Status.NOT_RUN):
                name = f"{place.kind}/{cell}"
                reason = f"{cell} {essential.said(outcome)}"
                finding = Finding("baseline", name, place.device, "failed", reason, cell, str(outcome.status))
                found.setdefault(name, finding)
    return dict(sorted(found.items()))


def against(baseline: Iterable[str], places: Sequence[Place]) -> tuple[Finding, ...]:
    """What differs from a baseline's ids: cells that fail and do not stand in it, and ids that are `fixed` or `stale`.

    Ids of a kind of device that is absent, and of cells that were not run, say nothing.
    """
    kept, now = set(baseline), failing(places)
    new = [
        msgspec.structs.replace(f, reason=f"{f.reason}; not in the baseline") for n, f in now.items() if n not in kept
    ]
    return (*new, *_settled(sorted(kept - now.keys()), places))


def _settled(names: Iterable[str], places: Sequence[Place]) -> Iterator[Finding]:
    """Findings on the baseline's ids that fail no more."""
    for name in names:
        kind, _, cell = name.partition("/")
        here = [place for place in places if place.kind == kind]
        known = [k for place in here if (k := place.known.get(cell)) and _measured(k)]
        if known and all(k.cell.outcome.status is Status.OK for k in known):
            yield Finding("baseline", name, kind, "fixed", f"{cell} is ok now", cell, "ok")
        elif here and not known:
            yield Finding("baseline", name, kind, "stale", f"no cell {cell} was measured here", cell)


def _measured(known: Known) -> bool:
    return known.cell.evidence == "measured"
