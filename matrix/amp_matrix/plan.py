"""What `choose` returns: the precision, why, and what was rejected by which cell."""

from __future__ import annotations

from typing import Literal

import msgspec

from amp_matrix.survey import Real

Task = Literal["train", "infer"]
Prefer = Literal["speed", "memory"]


class Rejection(msgspec.Struct, frozen=True):
    """Why a precision was not chosen: the first cell that blocked it ("" where no cell did), and one sentence."""

    precision: str
    cell: str
    status: str
    reason: str


class Proof(msgspec.Struct, frozen=True):
    """The survey that a choice rests on: its id, its start (UTC, ISO 8601) and its age in seconds."""

    survey: str
    started: str
    age: Real


class Gain(msgspec.Struct, frozen=True):
    """Measured speed as a multiple of fp32's: the interval's bounds (2.0 is twice as fast)."""

    low: Real
    high: Real


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The precision to use on a device for a task, with its evidence."""

    device: str
    task: Task
    prefer: Prefer
    precision: str
    fp8: str = "none"
    reason: str
    gain: Gain | None = None
    rejected: tuple[Rejection, ...] = ()
    caveats: tuple[str, ...] = ()
    evidence: Proof | None = None
