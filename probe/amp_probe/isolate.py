"""The main process's end: a pool of workers that runs payloads where they can harm nothing but their own answer."""

from __future__ import annotations

import os
import selectors
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType

import msgspec

from amp_probe import memory
from amp_probe.answer import Answer, Job
from amp_probe.forking import Forking
from amp_probe.nursery import Nursery
from amp_probe.slot import Phase, Slot
from amp_probe.spawning import Spawning
from amp_probe.wire import Open

__all__ = ["Answer", "Job", "Pool", "Spec"]

_STREAM = 16
"""How many tasks a lone worker holds; it then never waits for the next one."""
_SHARED = 2
"""How many where there are several workers; a slow task must not keep others waiting behind it."""


class Spec(msgspec.Struct, frozen=True):
    """What workers are.

    `entry` names "module:function"; called in the worker with `argument`, it gives the worker.Session. `fork`: fork
    workers from a zygote (Linux only, and only for sessions that open no accelerator); otherwise each is a program of
    its own, with a spare kept warm. `environ` is the whole environment of the workers, this process's where None; it
    cannot change later. `memory` is what a worker may take beyond what it has when its session is open, in bytes,
    memory.default_budget where None. `preload` are the modules that a zygote or a spare imports ahead of need, torch
    and the entry's where None.
    """

    entry: str
    argument: bytes = b""
    fork: bool = False
    environ: dict[str, str] | None = None
    memory: int | None = None
    preload: tuple[str, ...] | None = None


class Pool:
    """Workers for one spec. Use it as a context manager: leaving it ends every process that it started."""

    def __init__(self, spec: Spec, workers: int = 1) -> None:
        """Nothing is started yet. NotImplementedError on Windows, and for `fork` on anything but Linux."""
        if os.name != "posix":
            raise NotImplementedError("probing needs process groups and socket pairs: use Linux, macOS, or WSL")
        if spec.fork and sys.platform != "linux":
            raise NotImplementedError(f"workers cannot be forked safely on {sys.platform}")
        budget = memory.default_budget(workers) if spec.memory is None else spec.memory
        self._nursery = _nursery(spec)
        self._selector = selectors.DefaultSelector()
        opening = Open(spec.entry, spec.argument, budget if spec.fork else None)
        self._slots = [Slot(self._nursery, opening, budget, self._selector) for _ in range(workers)]
        self._lost = ""
        self._busy = False

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, jobs: Sequence[Job], workers: int | None = None) -> Iterator[Answer]:
        """Run the jobs on at most so many workers and give each one's answer as it comes, in no certain order.

        Time runs while the caller holds an answer: be quick with it, or a job may be over its time unseen. A batch
        that is not taken to its end is killed. RuntimeError where the pool is closed or already running a batch.
        """
        if self._busy or not self._slots:
            raise RuntimeError("this pool is already running a batch" if self._busy else "this pool is closed")
        self._busy = True
        slots = self._slots[: min(workers or len(self._slots), max(len(jobs), 1))]
        todo, left = deque(range(len(jobs))), set(range(len(jobs)))
        try:
            while left:
                for answer in self._step(jobs, todo, left, slots):
                    left.discard(answer.index)
                    yield answer
        finally:
            self._busy = False
            for slot in slots:
                if slot.busy:
                    slot.drop()

    def close(self) -> None:
        """End every process that this pool started. The pool cannot be used again."""
        for slot in self._slots:
            slot.drop()
        self._slots = []
        self._nursery.close()
        self._selector.close()

    def _step(self, jobs: Sequence[Job], todo: deque[int], left: set[int], slots: Sequence[Slot]) -> Sequence[Answer]:
        """Hand out what there is, wait for something to happen, and collect what came of it."""
        try:
            for slot in slots:
                self._feed(slot, jobs, todo, _STREAM if len(slots) == 1 else _SHARED)
        except OSError as error:  # out of processes or descriptors
            self._lost = f"no worker can be started: {error.strerror or error}"
        if not self._lost:
            self._wait(slots)
        answers = [answer for slot in slots for answer in _taken(slot, todo)]
        self._lost = self._lost or next((slot.lost for slot in slots if slot.lost), "")
        if self._lost:
            answers += self._lose(slots, left - {answer.index for answer in answers})
        return answers

    def _feed(self, slot: Slot, jobs: Sequence[Job], todo: deque[int], window: int) -> None:
        if slot.phase is Phase.EMPTY and todo and not self._lost:
            slot.start()
        if not slot.ready:
            return
        while todo and slot.outstanding < window:
            index = todo.popleft()
            slot.give(index, jobs[index])
        if not todo:
            slot.check()

    def _wait(self, slots: Sequence[Slot]) -> None:
        now = time.monotonic()
        timeout = min(slot.next_look(now) for slot in slots)
        for key, events in self._selector.select(max(timeout, 0.0)):
            key.data(events)
        now = time.monotonic()
        for slot in slots:
            slot.tick(now)

    def _lose(self, slots: Sequence[Slot], indices: set[int]) -> list[Answer]:
        """The device is lost: nothing more runs on it."""
        for slot in slots:
            slot.drop()
        return [Answer(index, "lost", detail=self._lost) for index in sorted(indices)]


def _taken(slot: Slot, todo: deque[int]) -> list[Answer]:
    """A slot's answers; the tasks that it was given and never began are to do again, before the others."""
    answers, slot.answers = slot.answers, []
    todo.extendleft(reversed(slot.returned))
    slot.returned = []
    return answers


def _nursery(spec: Spec) -> Nursery:
    environ: Mapping[str, str] = os.environ.copy() if spec.environ is None else spec.environ
    modules = ("torch", spec.entry.partition(":")[0]) if spec.preload is None else spec.preload
    return Forking(modules, environ) if spec.fork else Spawning(modules, environ)
