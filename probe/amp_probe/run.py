"""From a plan to surveys: devices, workers, the journal, and one document a device."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from amp_matrix import codec
from amp_matrix.store import Store, StoreError
from amp_matrix.survey import Cell, Environment, Outcome, Stage, Status, Survey, conclude, not_run
from amp_matrix.version import __version__
from amp_probe import journal as journals
from amp_probe.announce import read_announced, where_it_ended
from amp_probe.isolate import Answer, Job, Pool
from amp_probe.isolate import Spec as WorkerSpec
from amp_probe.journal import Header, Journal
from amp_probe.request import (
    Absent,
    Capture,
    FindDevices,
    ListCells,
    Request,
    Resolved,
    RunCell,
    Setting,
    Spec,
    Suite,
)

_SETUP_SECONDS = 60.0
T = TypeVar("T")


class RunError(Exception):
    """The run cannot be done as asked; the message says why in one line."""


class NothingToProbe(Exception):
    """No device that was asked for is here. `absent` says of each why not."""

    def __init__(self, absent: tuple[Absent, ...]) -> None:
        super().__init__("; ".join(f"{a.device}: {a.reason}" for a in absent) or "no device found")
        self.absent = absent


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, where, and where to keep it. `modules`: modules that declare more PROBES."""

    devices: tuple[str, ...] = ()
    suite: Suite = "core"
    globs: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    timeout: float | None = None
    jobs: int = 1
    resume: bool = False
    store: Path
    modules: tuple[str, ...] = ()


class Result(msgspec.Struct, frozen=True):
    """The surveys of the devices that were probed, and why the others were not."""

    surveys: tuple[Survey, ...]
    absent: tuple[Absent, ...]


class Progress(Protocol):
    """Who is told how a run goes."""

    def started(self, device: str, total: int) -> None:
        """A device's cells begin; `total` counts those still to run."""

    def cell(self, cell: Cell) -> None:
        """A cell has its outcome."""

    def finished(self, survey: Survey) -> None:
        """A device is done."""

    def warned(self, text: str) -> None:
        """Something went wrong that does not end the run."""


class _Pools:
    """The worker pools of one run, one a device, opened when first needed."""

    def __init__(self, stack: ExitStack, options: Options) -> None:
        self._stack, self._options = stack, options
        self._open: dict[str, Pool] = {}

    def of(self, device: str) -> Pool:
        """The pool of a device; the CPU's also looks for devices and may have several workers."""
        if device not in self._open:
            on_cpu = device == "cpu"
            spec = WorkerSpec(
                entry="amp_probe.session:open_session",
                argument=msgspec.msgpack.encode(Setting(device, self._options.modules)),
                fork=on_cpu and sys.platform == "linux",
            )
            pool = Pool(spec, workers=self._options.jobs if on_cpu else 1)
            self._open[device] = self._stack.enter_context(pool)
        return self._open[device]


def listing(options: Options) -> tuple[Spec, ...]:
    """The cells that these options select, in order; RunError where that is none."""
    with ExitStack() as stack:
        return _list(_Pools(stack, options).of("cpu"), options)


def run(options: Options, progress: Progress) -> Result:
    """Probe every device that was asked for and keep each survey in the store.

    Raises RunError (a selection or a device name that means nothing) and NothingToProbe.
    KeyboardInterrupt passes through with every worker gone and the journal kept.
    """
    with ExitStack() as stack:
        pools = _Pools(stack, options)
        specs = _list(pools.of("cpu"), options)
        found = _ask(pools.of("cpu"), FindDevices(options.devices), Resolved)
        captured, absent = _captured(pools, found)
        if not captured:
            raise NothingToProbe(absent)
        surveys = (_survey(d, env, specs, options, pools.of(d), progress) for d, env in captured.items())
        return Result(tuple(surveys), absent)


def capture(devices: tuple[str, ...] = ()) -> tuple[dict[str, Environment], tuple[Absent, ...]]:
    """The environment of each device that is here, captured in a worker, and the devices that are not here."""
    with ExitStack() as stack:
        pools = _Pools(stack, Options(store=Path()))
        return _captured(pools, _ask(pools.of("cpu"), FindDevices(devices), Resolved))


def _captured(pools: _Pools, found: Resolved) -> tuple[dict[str, Environment], tuple[Absent, ...]]:
    """The environment of each device that is here; one whose capture fails is as good as absent."""
    captured: dict[str, Environment] = {}
    absent = list(found.absent)
    for device in found.present:
        try:
            captured[device] = codec.decode_environment(_answer(pools.of(device), Capture()))
        except RunError as error:
            absent.append(Absent(device, f"its environment could not be captured: {error}"))
    return captured, tuple(absent)


def _list(pool: Pool, options: Options) -> tuple[Spec, ...]:
    wanted = ListCells(options.suite, options.globs, options.precisions, options.timeout)
    specs = _ask(pool, wanted, tuple[Spec, ...])
    if not specs:
        raise RunError("no cell matches; `amp-probe run --suite full --list` shows every cell there is")
    return specs


def _ask(pool: Pool, request: Request, kind: type[T]) -> T:
    return msgspec.msgpack.decode(_answer(pool, request), type=kind)


def _answer(pool: Pool, request: Request) -> bytes:
    """One request's answer; RunError where the worker could not give it."""
    (answer,) = pool.run([_job(request, _SETUP_SECONDS)], workers=1)
    if answer.kind == "raised":
        raise RunError(answer.detail)
    if answer.kind != "done":
        raise RunError(f"{answer.kind}: {answer.detail}")
    return answer.body


def _job(request: Request, timeout: float) -> Job:
    return Job(msgspec.msgpack.encode(request), timeout)


def _survey(
    device: str, environment: Environment, specs: Sequence[Spec], options: Options, pool: Pool, progress: Progress
) -> Survey:
    """Run the cells that the journal does not have yet, and store the whole."""
    started = time.perf_counter()
    header = _header(device, environment, specs, options)
    book = _journal(options, header, progress)
    done = dict(book.done) if book else {}
    before = sum(cell.outcome.seconds for cell in done.values())
    todo = [s for s in specs if s.id not in done]
    progress.started(device, len(todo))
    for cell in _cells(pool, todo, options.jobs if device == "cpu" else 1):
        done[cell.id] = cell
        book = _append(book, cell, progress)
        progress.cell(cell)
    if todo and all(done[s.id].outcome.code == "device_lost" for s in todo):
        if book:
            book.close(remove=False)
        raise RunError(f"{device}: no cell could be run: {done[todo[0].id].outcome.reason}")
    survey = Survey(
        tool=header.tool,
        device=device,
        suite=header.suite,
        started=book.header.started if book else header.started,
        seconds=round(time.perf_counter() - started + before, 3),
        environment=environment,
        cells=tuple(done[s.id] for s in specs),
    )
    _keep(survey, options.store, book, progress)
    progress.finished(survey)
    return survey


def _cells(pool: Pool, specs: Sequence[Spec], jobs: int) -> Iterator[Cell]:
    """Every cell as it comes: first those that may run side by side, then those that run alone."""
    for group, workers in (([s for s in specs if not s.alone], jobs), ([s for s in specs if s.alone], 1)):
        for answer in pool.run([_job(RunCell(s), s.timeout) for s in group], workers=workers):
            spec = group[answer.index]
            yield spec.cell(outcome_of(answer))


def outcome_of(answer: Answer) -> Outcome:
    """What an answer says of its cell: the worker's own outcome, or what is known of one that did not give any."""
    if answer.kind == "done":
        outcome = codec.decode_outcome(answer.body)
        return msgspec.structs.replace(outcome, notes=outcome.notes + answer.notes) if answer.notes else outcome
    if answer.kind == "lost":
        return not_run(f"the device was lost: {answer.detail}", "device_lost")
    finished, running = read_announced(answer.announced)
    status = {"crash": Status.CRASH, "timeout": Status.TIMEOUT}.get(answer.kind, Status.ERROR)
    place = where_it_ended(finished, running)
    last = Stage(name=place, status=status, reason=answer.detail, code=answer.kind, seconds=answer.seconds)
    return conclude([*finished, last], notes=answer.notes, seconds=answer.seconds)


def _header(device: str, environment: Environment, specs: Sequence[Spec], options: Options) -> Header:
    return Header(
        plan=hashlib.sha256(msgspec.json.encode([__version__, options.modules, *specs])).hexdigest(),
        device=device,
        suite=options.suite,
        started=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        tool=__version__,
        environment=environment,
    )


def _journal(options: Options, header: Header, progress: Progress) -> Journal | None:
    """The journal to resume or a new one; None, with a warning, where the store's folder refuses one."""
    folder = Store(options.store).journals
    try:
        found = journals.resume(folder, header) if options.resume else None
        if options.resume and found is None:
            progress.warned(f"{header.device}: nothing to resume; a full run starts")
        name = f"{header.started.replace(':', '')}-{header.device.replace(':', '')}-{time.time_ns() % 10**9:09d}"
        return found or journals.create(folder, name, header)
    except OSError as error:
        progress.warned(f"no journal is kept ({error.strerror or error}); a killed run cannot be resumed")
        return None


def _append(book: Journal | None, cell: Cell, progress: Progress) -> Journal | None:
    if book is None:
        return None
    try:
        book.append(cell)
    except OSError as error:
        progress.warned(f"the journal ends here ({error.strerror or error}); a killed run resumes from this cell")
        book.close(remove=False)
        return None
    return book


def _keep(survey: Survey, root: Path, book: Journal | None, progress: Progress) -> None:
    """Store the survey; the journal goes only once that succeeded."""
    try:
        Store(root).add(survey)
    except StoreError as error:
        progress.warned(f"the survey was not stored: {error}")
        if book:
            book.close(remove=False)
        return
    if book:
        book.close(remove=True)
