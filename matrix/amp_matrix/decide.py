"""The policy: from what is known of a device to a plan. Pure: it reads no clock, no file and no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import msgspec

from amp_matrix import essential
from amp_matrix.essential import Blocker
from amp_matrix.plan import Gain, Plan, Prefer, Proof, Rejection, Task
from amp_matrix.precision import COMPUTES, RECIPES, Precision
from amp_matrix.precision import parse as parse_precision
from amp_matrix.survey import Environment, Status, Survey

if TYPE_CHECKING:
    from amp_matrix.matrix import Known

_FP32 = Precision("fp32")


class _Question(msgspec.Struct, frozen=True):
    """What is asked, in one piece."""

    known: Mapping[str, Known]
    now: Environment
    task: Task
    prefer: Prefer
    needs: Sequence[str]
    others: Sequence[Survey]


class _Candidate(msgspec.Struct, frozen=True):
    """A precision with what speaks against it: a blocking cell, or no measured speed (`untimed`)."""

    precision: Precision
    blocker: Blocker | None
    gain: Gain | None
    untimed: Blocker | None

    @property
    def eligible(self) -> bool:
        return self.blocker is None

    @property
    def pays(self) -> bool:
        return self.gain is not None and essential.pays(self.gain) is True

    @property
    def noisy(self) -> bool:
        """Whether its timing is too noisy to tell."""
        return self.eligible and self.gain is not None and essential.pays(self.gain) is None


def decide(
    known: Mapping[str, Known],
    now: Environment,
    *,
    device: str,
    task: Task = "train",
    prefer: Prefer = "speed",
    needs: Sequence[str] = (),
    allow_fp8: bool = False,
    others: Sequence[Survey] = (),
    at: float = math.nan,
) -> Plan:
    """The cheapest precision that every required cell allows, else fp32; it never raises on what surveys hold.

    `known` is what `matrix.select` gives for the identity of `now`. `needs` are cells required beyond the essential
    ones, by probe and variant. `others` are surveys of other environments, only to say what has changed. `at` is the
    time of now in seconds since 1970 (UTC), for the evidence's age.
    """
    question = _Question(known, now, task, prefer, tuple(needs), tuple(others))
    candidates = [_look(question, p) for p in _precisions(known, allow_fp8)]
    winner = _pick(candidates, prefer)
    return Plan(
        device=device,
        task=task,
        prefer=prefer,
        precision=winner.precision.compute,
        fp8=winner.precision.recipe,
        reason=_reason(winner, candidates, question),
        gain=winner.gain if winner.eligible else None,
        rejected=tuple(_rejection(c, winner, prefer) for c in candidates if c is not winner),
        caveats=tuple(_caveats(question, winner)),
        evidence=_proof(question, winner, at) if winner.eligible else None,
    )


def _precisions(known: Mapping[str, Known], allow_fp8: bool) -> Iterable[Precision]:
    """The compute precisions, and with FP8 allowed those with a recipe that any survey has."""
    yield from map(Precision, COMPUTES)
    if allow_fp8:
        found = {
            p for name in {k.cell.precision for k in known.values()} if (p := _parsed(name)) and p.recipe != "none"
        }
        yield from sorted(found, key=_safety)


def _parsed(name: str) -> Precision | None:
    try:
        return parse_precision(name)
    except ValueError:
        return None


def _safety(precision: Precision) -> tuple[int, int]:
    """Its place among all, the safest first."""
    return COMPUTES.index(precision.compute), RECIPES.index(precision.recipe)


def _look(question: _Question, precision: Precision) -> _Candidate:
    name, task, now = str(precision), question.task, question.now
    stop = essential.first_blocker(question.known, name, task, now, needs=question.needs, others=question.others)
    if stop is not None or precision == _FP32:
        return _Candidate(precision, stop, None, None)
    timing = essential.speed(task, name)
    untimed = essential.blocker(question.known, timing, task, now, others=question.others)
    gain = None if untimed else essential.gain(question.known[timing.cell].cell)
    return _Candidate(precision, None, gain, untimed)


def _pick(candidates: Sequence[_Candidate], prefer: Prefer) -> _Candidate:
    """The winner; fp32 where nothing else may be."""
    eligible = [c for c in candidates if c.eligible]
    if prefer == "memory" and eligible:
        return min(eligible, key=lambda c: (_memory(c.precision), _safety(c.precision)))
    paying = [(c, c.gain) for c in eligible if c.gain is not None and c.pays]
    if paying:
        best = max(gain.low for _, gain in paying)
        return min((c for c, gain in paying if gain.high >= best), key=lambda c: _safety(c.precision))
    return next(c for c in candidates if c.precision == _FP32)


def _memory(precision: Precision) -> int:
    """How much memory a precision needs, in ranks: low-precision parameters, low-precision activations, neither."""
    return 0 if precision.storage != "float32" else 1 if precision.mixed else 2


def _rejection(loser: _Candidate, winner: _Candidate, prefer: Prefer) -> Rejection:
    name = str(loser.precision)
    if stop := loser.blocker:
        return Rejection(name, stop.cell, stop.status, stop.reason)
    if prefer == "speed" and (stop := loser.untimed):
        return Rejection(name, stop.cell, stop.status, f"eligible, but {stop.reason}")
    return Rejection(name, "", "ok", _lost(loser, winner, prefer), loser.gain)


def _lost(loser: _Candidate, winner: _Candidate, prefer: Prefer) -> str:
    """Why an eligible precision was not chosen."""
    gain = f", {loser.gain}" if loser.gain else ""
    if prefer == "memory":
        more = _memory(loser.precision) > _memory(winner.precision)
        better = "needs less memory" if more else "needs no more memory and is safer"
        return f"eligible{gain}; {winner.precision} {better}"
    if loser.noisy:
        return f"eligible{gain}, which is too noisy to tell; run amp-probe run --suite quick on a quieter machine"
    if loser.precision != _FP32 and not loser.pays:
        return f"eligible{gain}; that is no gain" if gain else "eligible, but its speed is not known"
    safer = loser.gain is not None and winner.gain is not None and loser.gain.low >= winner.gain.low
    better = "is as fast within the noise, and safer" if safer else "was faster"
    return f"eligible{gain}; {winner.precision} {better}"


def _reason(winner: _Candidate, candidates: Sequence[_Candidate], question: _Question) -> str:
    if winner.blocker:
        asked = {f"{need}@{_FP32}" for need in question.needs}
        if winner.blocker.status == "unknown" and winner.blocker.cell in asked:
            return winner.blocker.reason.replace(f"@{_FP32}", "", 1)
        return f"nothing is known to work here, fp32 included: {winner.blocker.reason}"
    right = f"every essential cell to {question.task} is ok here"
    if winner.precision != _FP32:
        merit = (
            f"it was measured at {winner.gain}" if question.prefer == "speed" else "nothing eligible needs less memory"
        )
        return f"{right}, and {merit}"
    wanted = "measurably faster" if question.prefer == "speed" else "smaller"
    stops = (c.blocker or c.untimed for c in candidates if c is not winner)
    unknown = next((f"; {b.reason}" for b in stops if b and b.status == "unknown"), "")
    noisy = ", ".join(str(c.precision) for c in candidates if c.noisy) if question.prefer == "speed" else ""
    unknown = unknown or (f"; too noisy to tell: {noisy}" if noisy else "")
    return f"{right}, and no other precision is eligible and {wanted}{unknown}"


def _caveats(question: _Question, winner: _Candidate) -> Iterator[str]:
    """What fails beyond the required cells, and of an fp32 that is only fallen back to, what failed in it."""
    if winner.blocker and winner.blocker.status != "unknown":
        yield f"fp32 itself fails here: {winner.blocker.reason}"
    name = str(winner.precision)
    required = {e.cell for e in essential.required(question.task, name, question.needs)}
    for cell, fact in question.known.items():
        if fact.cell.precision != name or fact.cell.evidence != "measured" or cell in required:
            continue
        outcome = essential.counted(fact.cell, question.task)
        if essential.tier(cell) == "stress" and outcome.status not in (Status.OK, Status.NOT_RUN):
            yield ": ".join(filter(None, [cell, str(outcome.status), " ".join(outcome.reason.split())]))


def _proof(question: _Question, winner: _Candidate, at: float) -> Proof:
    """The oldest survey among those that vouch for the winner."""
    name = str(winner.precision)
    cells = [e.cell for e in essential.required(question.task, name, question.needs)]
    cells += [essential.speed(question.task, name).cell] if winner.gain else []
    oldest = min((question.known[cell] for cell in cells), key=lambda k: (k.started, k.survey))
    return Proof(oldest.survey, oldest.started, at - seconds_of(oldest.started))


def seconds_of(started: str) -> float:
    """A survey's start in seconds since 1970 (UTC); NaN where it is no time."""
    try:
        return datetime.strptime(started, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return math.nan
