"""The stages of one cell as they happen: each announced, timed, and closed by a status."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from amp_matrix.survey import Outcome, Raised, Stage, Status, TensorError, conclude, worst
from amp_probe.harness.classify import classify


class Fault(Exception):
    """Ends the running stage with a status and a reason; no later stage runs."""

    def __init__(self, status: Status, reason: str, code: str = "") -> None:
        super().__init__(reason)
        self.status, self.reason, self.code = status, reason, code


class Stopped(Exception):
    """A stage ended in a way that leaves nothing for later ones to do; the recorder already has it."""


@dataclass
class Draft:
    """A stage while it runs. `fail` keeps the worst status that it was given, and the stage goes on."""

    name: str
    status: Status = Status.OK
    reason: str = ""
    code: str = ""
    exception: Raised | None = None
    dtypes: dict[str, str] = field(default_factory=dict)
    errors: list[TensorError] = field(default_factory=list)
    numbers: dict[str, float] = field(default_factory=dict)
    curves: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def fail(self, status: Status, reason: str, code: str = "") -> None:
        """Note a fault; the first of the worst status keeps the reason."""
        if worst((self.status, status)) != self.status:
            self.status, self.reason, self.code = status, reason, code


class Recorder:
    """Collects a cell's stages. `begin` is told each stage's name as it starts, `end` each finished stage."""

    def __init__(self, begin: Callable[[str], None], end: Callable[[Stage], None]) -> None:
        self._begin, self._end = begin, end
        self.stages: list[Stage] = []
        self.notes: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[Draft]:
        """Run one stage. Whatever it raises becomes its status, and Stopped is raised in its place."""
        self._begin(name)
        draft, started = Draft(name), time.perf_counter()
        try:
            yield draft
        except Fault as fault:
            draft.fail(fault.status, fault.reason, fault.code)
            self._close(draft, started)
            raise Stopped from None
        except BaseException as error:  # noqa: BLE001 -- SystemExit and KeyboardInterrupt in a cell are `error` too
            verdict = classify(error)
            draft.fail(verdict.status, verdict.reason, verdict.code)
            draft.exception = verdict.exception
            self._close(draft, started)
            raise Stopped from None
        self._close(draft, started)

    def outcome(self) -> Outcome:
        """What the stages so far add up to."""
        return conclude(self.stages, notes=self.notes, seconds=round(sum(s.seconds for s in self.stages), 6))

    def _close(self, draft: Draft, started: float) -> None:
        stage = Stage(
            name=draft.name,
            status=draft.status,
            reason=draft.reason,
            code=draft.code,
            exception=draft.exception,
            seconds=round(time.perf_counter() - started, 6),
            dtypes=dict(draft.dtypes),
            errors=tuple(draft.errors),
            numbers=dict(draft.numbers),
            curves=dict(draft.curves),
        )
        self.stages.append(stage)
        self._end(stage)
