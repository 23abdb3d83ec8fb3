"""One place in a pool: its worker of now, what that was sent and has answered, and when it must be done."""

from __future__ import annotations

import selectors
import signal
import time
from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

import msgspec

from amp_probe import memory, worker
from amp_probe.answer import Answer, Job, Kind
from amp_probe.limits import ORPHANED
from amp_probe.link import Link, Output
from amp_probe.nursery import Exit, Nursery, Process
from amp_probe.scrub import scrub
from amp_probe.wire import LIMIT, Begin, Check, Done, Failed, FromWorker, Garbage, Open, Ready, Said, State, Task

START_SECONDS = 120.0
"""How long a worker may take to import, open its session and pass its canary."""
SETTLE_SECONDS = 60.0
"""How long a worker may take between tasks: state guard and canary."""
REAP_SECONDS = 5.0
"""How long a killed worker may take to be gone; after that its device is lost."""
_CLOSE_SECONDS = 0.5
_POLL_SECONDS = 0.05
_LAST_CHUNKS = 1 << 10


class Phase(Enum):
    """How far a slot's worker is."""

    EMPTY = auto()
    OPENING = auto()
    SERVING = auto()
    CLOSING = auto()  # its socket is closed, and how it ended is not known yet
    DYING = auto()  # it was killed, and is not gone yet


class _Verdict(NamedTuple):
    """Why the main process ends a worker, which is then what became of the task that it was running."""

    kind: Kind
    detail: str


_LEAVING = _Verdict("crash", "")


class Slot:
    """Keeps one worker going. The pool gives it tasks, calls `tick`, and takes `answers`, `returned` and `lost`."""

    def __init__(self, nursery: Nursery, opening: Open, budget: int, selector: selectors.BaseSelector) -> None:
        self._nursery, self._opening, self._budget, self._selector = nursery, opening, budget, selector
        self.phase = Phase.EMPTY
        self.answers: list[Answer] = []
        self.returned: list[int] = []
        self.lost = ""
        self.crashed = False
        self.failures = 0
        self._blank()

    def _blank(self) -> None:
        self._process: Process | None = None
        self._sent: deque[int | None] = deque()  # None is a check
        self._running: int | None = None
        self._settling = False
        self._held: Answer | None = None
        self._said: list[bytes] = []
        self._room = 0
        self._began = 0.0
        self._timeouts: dict[int, float] = {}
        self._deadline = 0.0
        self._verdict: _Verdict | None = None
        self._limit = 0
        self._look_at = 0.0
        self._pid = 0

    # What the pool asks of it

    @property
    def outstanding(self) -> int:
        """How many tasks were sent and not answered."""
        return len(self._sent)

    @property
    def busy(self) -> bool:
        """Whether an answer is still to come, or held until its worker is known to be sound."""
        return bool(self._sent) or self._held is not None

    @property
    def ready(self) -> bool:
        """Whether it takes tasks now."""
        return self.phase is Phase.SERVING

    def start(self) -> None:
        """Get a worker and have it open its session."""
        self._blank()
        process = self._process = self._nursery.start()
        self._link = Link(process.sock, self._selector, self._on_socket)
        self._output = Output(process.output, self._selector)
        self._exit_fd = process.exit_fd()
        if self._exit_fd is not None:
            self._selector.register(self._exit_fd, selectors.EVENT_READ, self._on_exit)
        self._enter(Phase.OPENING, START_SECONDS)
        self._link.send(self._opening)

    def give(self, index: int, job: Job) -> None:
        """Send a task behind those already sent."""
        if not self._sent and self._running is None:
            self._deadline = time.monotonic() + SETTLE_SECONDS
        self._sent.append(index)
        self._timeouts[index] = job.timeout
        self._link.send(Task(index, job.payload, job.timeout))

    def check(self) -> None:
        """Have the worker checked behind the last task, once."""
        if self.busy and not (self._sent and self._sent[-1] is None):
            self._sent.append(None)
            self._link.send(Check())

    def tick(self, now: float) -> None:
        """Look at the clock, the memory and, where no descriptor tells of it, the process."""
        if self._process is None:
            return
        if self._exit_fd is None or self.phase in (Phase.CLOSING, Phase.DYING):
            self._on_exit(0)
        if self._running is not None and now >= self._look_at:
            self._look_at = now + memory.INTERVAL
            self._look_at_memory()
        if self._awaited and now >= self._deadline:
            self._overdue()

    def next_look(self, now: float) -> float:
        """Seconds until `tick` has something to look at."""
        if self._process is None or not self._awaited:
            return START_SECONDS
        polled = self._exit_fd is None or self.phase is not Phase.SERVING
        look_at = self._look_at if self._running is not None else self._deadline
        return min(self._deadline - now, look_at - now, _POLL_SECONDS if polled else START_SECONDS)

    def drop(self) -> None:
        """Kill the worker and forget what it was doing."""
        if self._process is not None:
            self._process.kill()
            self._let_go()
            self._blank()

    # What its worker does

    @property
    def _awaited(self) -> bool:
        return self.phase is not Phase.SERVING or self.busy

    def _enter(self, phase: Phase, seconds: float) -> None:
        self.phase, self._deadline = phase, time.monotonic() + seconds

    def _on_socket(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._link.flush()
        self._read()
        if self._link.closed and self.phase in (Phase.OPENING, Phase.SERVING):
            self._enter(Phase.CLOSING, _CLOSE_SECONDS)

    def _read(self, chunks: int = 1) -> None:
        try:
            for message in self._link.messages(chunks):
                self._hear(message)
        except Garbage as error:
            self._link.detach()
            self._end_worker(_Verdict("crash", f"the worker sent {error}"))

    def _hear(self, message: FromWorker) -> None:
        match message:
            case Begin(index, at) if self._running is None and self._sent and self._sent[0] == index:
                self._begin(index, at)
            case Said(index, line):
                if index == self._running:  # a thread that outlives its task may speak too late
                    self._keep(line)
            case Done(index) if index == self._running:
                self._done(message)
            case State(drift, canary) if self._settling or (self._sent and self._sent[0] is None):
                self._state(drift, canary)
            case Ready() if self.phase is Phase.OPENING:
                self._open()
            case Failed(detail) if self.phase is Phase.OPENING:
                self.lost = scrub(detail)
                self._end_worker(_Verdict("lost", self.lost))
            case _:
                raise Garbage(f"a {type(message).__name__} that has no place here")

    def _open(self) -> None:
        self._enter(Phase.SERVING, SETTLE_SECONDS)
        self._pid = self._process.pid() if self._process else 0
        self._limit = memory.resident(self._pid) + self._budget
        self._nursery.spare(2 if self.crashed else 1)

    def _begin(self, index: int, at: float) -> None:
        self._release()
        self.failures = 0
        self._running, self._said, self._room = index, [], LIMIT
        self._began = min(at, time.monotonic())
        self._deadline = self._began + self._timeouts[index]
        self._output.forget()

    def _keep(self, line: bytes) -> None:
        self._room -= len(line) + 64
        if self._room < 0:
            raise Garbage(f"announcements of more than {LIMIT} bytes")
        self._said.append(line)

    def _done(self, done: Done) -> None:
        self._sent.popleft()
        self._running = None
        self._settling = True
        self._deadline = time.monotonic() + SETTLE_SECONDS
        kind: Kind = "raised" if done.raised else "done"
        self._held = Answer(done.index, kind, done.body, tuple(self._said), scrub(done.detail), (), done.seconds)

    def _state(self, drift: Sequence[str], canary: str) -> None:
        """A worker that says it is not clean any more is leaving; its last task keeps its answer."""
        checked = not self._settling
        if checked:
            self._sent.popleft()
        self._settling = False
        self._deadline = time.monotonic() + SETTLE_SECONDS
        if drift:
            self._note(f"left changed: {', '.join(drift)}; the worker was replaced")
        if canary:
            self._note(f"the canary failed after this: {scrub(canary)}; the worker was replaced")
        if drift or canary or checked:
            self._release()
        if drift or canary:
            self._end_worker(_LEAVING)

    def _note(self, note: str) -> None:
        if self._held is not None:
            self._held = msgspec.structs.replace(self._held, notes=(*self._held.notes, note))

    def _release(self) -> None:
        """Give the held answer away."""
        if self._held is not None:
            self.answers.append(self._held)
            self._held = None

    # How its worker ends

    def _look_at_memory(self) -> None:
        resident = memory.resident(self._pid)
        if resident > self._limit:
            self._end_worker(
                _Verdict("crash", f"out of memory: {resident >> 20} MiB resident, {self._limit >> 20} allowed")
            )

    def _overdue(self) -> None:
        if self.phase is Phase.DYING:
            self.lost = f"its worker could not be killed in {REAP_SECONDS:g} s"
            self._conclude(None)
        elif self.phase is Phase.CLOSING:
            self._end_worker(_Verdict("crash", "closed its connection to the main process"))
        elif self.phase is Phase.OPENING:
            self._end_worker(_Verdict("crash", f"did not open in {START_SECONDS:g} s"))
        elif self._running is not None:
            self._end_worker(_Verdict("timeout", f"no answer in {self._timeouts[self._running]:g} s"))
        else:
            self._end_worker(_Verdict("crash", f"state guard and canary took over {SETTLE_SECONDS:g} s"))

    def _end_worker(self, verdict: _Verdict) -> None:
        """Kill the worker; the first reason for it counts."""
        if self._verdict is None and self._process is not None:
            self._verdict = verdict
            self._enter(Phase.DYING, REAP_SECONDS)
            self._process.kill()

    def _on_exit(self, events: int) -> None:
        """Conclude once the worker is gone and its last words are read."""
        end = self._process.ended() if self._process is not None else None
        if end is not None:
            self._read(_LAST_CHUNKS)
            self._output.drain()
            self._conclude(end)

    def _conclude(self, end: Exit | None) -> None:
        verdict = self._verdict or self._judge(end)
        if self._running is not None:
            seconds = max((end.at if end else time.monotonic()) - self._began, 0.0)
            said = tuple(self._said)
            self.answers.append(Answer(self._running, verdict.kind, b"", said, scrub(verdict.detail), (), seconds))
            self._sent.popleft()
            self.crashed = True
        elif self._held is not None:
            self._note(f"the worker died after this: {scrub(verdict.detail)}")
            self._release()
        elif verdict is not _LEAVING:
            self._failed(verdict.detail)
        self.returned += [index for index in self._sent if index is not None]
        self._let_go()
        self._blank()

    def _failed(self, detail: str) -> None:
        """It ended before it began anything. Once may be chance."""
        self.failures += 1
        if self.failures > 1 and not self.lost:
            self.lost = f"no worker can be started: {scrub(detail)}"

    def _judge(self, end: Exit | None) -> _Verdict:
        """What the way a worker ended by itself says of the task it was running."""
        if end is None:
            return _Verdict("crash", "")
        timeout = self._timeouts.get(self._running if self._running is not None else -1, float("inf"))
        if end.code == 1 and end.at - self._began > timeout:  # its own last resort, while nobody looked
            return _Verdict("timeout", f"no answer in {timeout:g} s")
        words = self._output.last_words()
        return _Verdict("crash", _describe(end.code) + (f": {words}" if words else ""))

    def _let_go(self) -> None:
        self._link.detach()
        self._output.detach()
        if self._exit_fd is not None:
            self._selector.unregister(self._exit_fd)
        if self._process is not None:
            self._process.close()
        self.phase = Phase.EMPTY


def _describe(code: int) -> str:
    if code == worker.UNSENT:
        return "lost its connection to the main process"
    if code == ORPHANED:
        return "was left alone: the thread that started it ended"
    if code >= 0:
        return f"exited with {code} before it answered"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
