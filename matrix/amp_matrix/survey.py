"""What one run on one device saw: the frozen structs that every document is made of."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    Real = float
else:

    class Real(float):
        """A float that a document writes as a number, or as "nan", "inf" or "-inf"."""

        __slots__ = ()


class Status(str, Enum):
    """How a cell, or one of its stages, came out. A closed set."""

    CRASH = "crash"
    TIMEOUT = "timeout"
    ERROR = "error"
    NONFINITE = "nonfinite"
    INACCURATE = "inaccurate"
    INERT = "inert"
    UNSUPPORTED = "unsupported"
    NOT_RUN = "not_run"
    EMULATED = "emulated"
    OK = "ok"

    def __str__(self) -> str:
        return self.value


SEVERITY = tuple(Status)
"""Worst first. `not_run` stands before `ok`: a stage that could not run leaves the cell unknown, never `ok`."""

Evidence = Literal["measured", "simulated", "claimed"]
Tier = Literal["essential", "stress"]


def worst(statuses: Iterable[Status]) -> Status:
    """The worst of some statuses by SEVERITY; `not_run` for none at all."""
    return min(statuses, key=SEVERITY.index, default=Status.NOT_RUN)


class Raised(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """An exception as a probe saw it: the type's name and its text, without paths, one line."""

    type: str
    text: str = ""


class TensorError(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """How far a tensor is from its float64 reference, in eps of a precision: n whole, s by slice (docs/numerics.md)."""

    name: str
    dtype: str
    n: Real
    n_limit: Real
    s: Real = 0.0
    s_limit: Real = 0.0


class Stage(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """One step inside a probe. `code` is the reason as a word for programs, `reason` as a line for people."""

    name: str
    status: Status | None = Status.OK
    reason: str = ""
    code: str = ""
    seconds: Real = 0.0
    exception: Raised | None = None
    dtypes: dict[str, str] = {}
    errors: tuple[TensorError, ...] = ()
    numbers: dict[str, Real] = {}
    curves: dict[str, tuple[Real, ...]] = {}


class Outcome(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """What happened in a cell. `status` is the worst of its stages'; `stage` names the stage that gave it."""

    status: Status | None
    reason: str = ""
    code: str = ""
    stage: str = ""
    stages: tuple[Stage, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: Real = 0.0

    def __post_init__(self) -> None:
        ran = [s.status for s in self.stages if s.status is not None]
        if ran and self.status != worst(ran):
            raise ValueError(f"status is {self.status}, but the worst of the stages is {worst(ran)}")
        if not ran and self.status not in (None, Status.NOT_RUN):
            raise ValueError(f"status is {self.status}, but no stage gave it")


class Cell(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """A probe, a variant and a precision on one device, with its outcome. `revision` is the probe's."""

    probe: str
    precision: str
    tier: Tier
    revision: int
    outcome: Outcome
    variant: str = "base"
    evidence: Evidence = "measured"

    def __post_init__(self) -> None:
        if (self.outcome.status is None) != (self.evidence == "simulated"):
            raise ValueError("a simulated cell has no status, and every other cell has one")

    @property
    def id(self) -> str:
        """`op.softmax[large]@bf16-mixed`; the base variant is not written."""
        return cell_id(self.probe, self.variant, self.precision)


class Environment(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """What decides whether a result still holds. Values are plain strings; host, user and paths never stand here.

    `identity` must be equal or the evidence does not count; `scoped` is compared for the precisions that a field can
    change; `recorded` is shown.
    """

    identity: dict[str, str]
    scoped: dict[str, str] = {}
    recorded: dict[str, str] = {}


class Survey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, weakref=True):
    """One run on one device in one environment. `started` is UTC, ISO 8601, whole seconds, ending in Z."""

    format: Literal[1] = 1
    kind: Literal["survey"] = "survey"
    tool: str
    device: str
    suite: str
    started: str
    seconds: Real
    environment: Environment
    cells: tuple[Cell, ...]


def cell_id(probe: str, variant: str, precision: str) -> str:
    """A cell's id as people write it."""
    return f"{probe}@{precision}" if variant == "base" else f"{probe}[{variant}]@{precision}"


def conclude(stages: Iterable[Stage], *, notes: Iterable[str] = (), seconds: float = 0.0) -> Outcome:
    """The outcome that some stages add up to: the worst status, with the reason of the first stage that has it."""
    kept = tuple(stages)
    status = worst(s.status for s in kept if s.status is not None)
    blame = next((s for s in kept if s.status is status), None)
    if blame is None or status is Status.OK:
        return Outcome(status=status, stages=kept, notes=tuple(notes), seconds=seconds)
    return Outcome(
        status=status,
        reason=blame.reason,
        code=blame.code,
        stage=blame.name,
        stages=kept,
        notes=tuple(notes),
        seconds=seconds,
    )


def not_run(reason: str, code: str) -> Outcome:
    """The outcome of a cell that never started, and why."""
    return Outcome(status=Status.NOT_RUN, reason=reason, code=code)
