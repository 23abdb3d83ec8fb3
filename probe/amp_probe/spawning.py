"""Workers started as programs of their own, with spares kept warm."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence

from amp_probe import limits
from amp_probe.nursery import PATIENCE, Exit, Process, socket_pair, start_program, wide_pipe
from amp_probe.stray import Marked


class Spawning:
    """Workers started as programs, and spares that have imported what they need and opened no device."""

    def __init__(self, modules: Sequence[str], environ: Mapping[str, str]) -> None:
        self._modules, self._environ = modules, environ
        self._spares: list[_SpawnedWorker] = []

    def start(self) -> Process:
        """The oldest spare that still lives, or a new process."""
        while self._spares:
            worker = self._spares.pop(0)
            if worker.ended() is None:
                return worker
            worker.close()
        return self._spawn()

    def spare(self, count: int) -> None:
        """Start spares until there are so many."""
        while len(self._spares) < count:
            self._spares.append(self._spawn())

    def close(self) -> None:
        """End the spares."""
        for worker in self._spares:
            worker.kill()
            worker.close()
        self._spares.clear()

    def _spawn(self) -> _SpawnedWorker:
        return _SpawnedWorker(self._modules, Marked(self._environ))


class _SpawnedWorker:
    """A worker that is a program of its own."""

    def __init__(self, modules: Sequence[str], environ: Marked) -> None:
        self._environ = environ
        self._exit: Exit | None = None
        self.sock, theirs = socket_pair()
        self.output, output = wide_pipe()
        try:
            with theirs:
                self._process = start_program("worker", theirs.fileno(), modules, environ.variables(), output)
        finally:
            os.close(output)
        self._pidfd = _pidfd(self._process.pid)

    def exit_fd(self) -> int | None:
        return self._pidfd

    def ended(self) -> Exit | None:
        if self._exit is None and self._process.poll() is not None:
            limits.kill_group(self._process.pid)
            self._environ.kill_marked()
            self._exit = Exit(self._process.returncode, time.monotonic())
        return self._exit

    def kill(self) -> None:
        if self._exit is None:
            limits.kill_group(self._process.pid)

    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)
        self.ended()
        self.sock.close()
        os.close(self.output)
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
