"""Where the main process gets workers from: forked by a zygote, or started as programs with spares kept warm."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from amp_probe import boot, limits
from amp_probe.wire import Exited, Forked, from_keeper

_MARK = "WORKER_OF_AMP_PROBE"
_PATIENCE = 6.0


class Exit(NamedTuple):
    """How a process ended: its exit code (negative for a signal), and the monotonic clock when it was seen."""

    code: int
    at: float


class Process(Protocol):
    """A worker's process, as the main process holds it. `sock` and `output` (its stdout and stderr) do not block."""

    sock: socket.socket
    output: int

    def exit_fd(self) -> int | None:
        """A descriptor that is readable once the process may have ended; None where the system has none."""

    def ended(self) -> Exit | None:
        """How it ended, once nothing of it is left. Does not wait."""

    def pid(self) -> int:
        """Its process id; 0 where it is not known yet, or gone."""

    def kill(self) -> None:
        """SIGKILL to its whole group."""

    def close(self) -> None:
        """Let go of every descriptor, once it has ended or was killed."""


class Nursery(Protocol):
    """Makes workers."""

    def start(self) -> Process:
        """A worker; it may still be starting, and takes messages already."""

    def spare(self, count: int) -> None:
        """Keep so many more ready, where keeping them is of use."""

    def close(self) -> None:
        """End everything it ever started."""


class Forking:
    """Workers forked by keepers of one zygote (Linux)."""

    def __init__(self, modules: Sequence[str], environ: Mapping[str, str]) -> None:
        self._modules, self._environ = modules, _Marked(environ)
        self._zygote: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._idle: list[_Keeper] = []

    def start(self) -> Process:
        """A worker from an idle keeper, or a new one."""
        while self._idle:
            keeper = self._idle.pop()
            with contextlib.suppress(OSError):
                return _ForkedWorker(keeper, self)
        return _ForkedWorker(self._keeper(), self)

    def spare(self, count: int) -> None:
        """Nothing: a fork is quick."""

    def close(self) -> None:
        """Close the control sockets, so that all go after cleaning up; kill what does not."""
        self.drop_zygote(_PATIENCE)
        self._environ.kill_marked()

    def give_back(self, keeper: _Keeper) -> None:
        """A keeper whose worker is gone, to be used again if its zygote still is the zygote."""
        if keeper.zygote is self._zygote:
            self._idle.append(keeper)
        else:
            keeper.control.close()

    def disown(self, keeper: _Keeper) -> None:
        """A keeper that is gone or stuck: end its whole family."""
        keeper.control.close()
        if keeper.zygote is self._zygote:
            self.drop_zygote()

    def drop_zygote(self, patience: float = 0.0) -> None:
        """End the zygote and its keepers; the next worker gets new ones."""
        for keeper in self._idle:
            keeper.control.close()
        self._idle.clear()
        if self._control is not None:
            self._control.close()
        if self._zygote is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._zygote.wait(patience)
            _end(self._zygote)
        self._zygote = self._control = None

    def _keeper(self) -> _Keeper:
        if self._zygote is None or self._zygote.poll() is not None:
            self.drop_zygote()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self._open_control(), [b"keeper"], [theirs.fileno()])
            except OSError:  # the zygote died since it was asked
                self.drop_zygote()
                socket.send_fds(self._open_control(), [b"keeper"], [theirs.fileno()])
        ours.setblocking(False)
        return _Keeper(ours, self._zygote)

    def _open_control(self) -> socket.socket:
        if self._control is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._zygote = _popen("zygote", theirs.fileno(), self._modules, self._environ.variables(), None)
            self._control = ours
        return self._control


class _Keeper(NamedTuple):
    control: socket.socket
    zygote: subprocess.Popen[bytes] | None


class _ForkedWorker:
    """A worker that a keeper forks."""

    def __init__(self, keeper: _Keeper, nursery: Forking) -> None:
        self._keeper, self._nursery = keeper, nursery
        self._pid: int | None = None
        self._exit: Exit | None = None
        self.sock, theirs = _pair()
        self.output, output = _pipe()
        try:
            with theirs:
                socket.send_fds(keeper.control, [b"worker"], [theirs.fileno(), output])
        except OSError:
            self.close()
            raise
        finally:
            os.close(output)

    def exit_fd(self) -> int | None:
        return self._keeper.control.fileno()

    def ended(self) -> Exit | None:
        while self._exit is None:
            try:
                data = self._keeper.control.recv(1 << 12)
            except BlockingIOError:
                return None
            except OSError:
                data = b""
            self._heard(data)
        return self._exit

    def _heard(self, data: bytes) -> None:
        match from_keeper.decode(data) if data else None:
            case Forked(pid):
                self._pid = pid
            case Exited(code, at):
                self._pid, self._exit = None, Exit(code, at)
                self._nursery.give_back(self._keeper)
            case None:  # the keeper itself is gone; its worker dies with it, and the family is not whole any more
                if self._pid is not None:
                    limits.kill_group(self._pid)
                self._pid, self._exit = None, Exit(-signal.SIGKILL, time.monotonic())
                self._nursery.disown(self._keeper)

    def pid(self) -> int:
        self.ended()
        return self._pid or 0

    def kill(self) -> None:
        if self.pid():
            limits.kill_group(self.pid())
        elif self._exit is None:  # not even forked: the keeper or its zygote is stuck
            self._exit = Exit(-signal.SIGKILL, time.monotonic())
            self._nursery.disown(self._keeper)

    def close(self) -> None:
        self.sock.close()
        os.close(self.output)
        if self._exit is None:  # its keeper ends with it
            self._keeper.control.close()


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
        return _SpawnedWorker(self._modules, _Marked(self._environ))


class _SpawnedWorker:
    """A worker that is a program of its own."""

    def __init__(self, modules: Sequence[str], environ: _Marked) -> None:
        self._environ = environ
        self._exit: Exit | None = None
        self.sock, theirs = _pair()
        self.output, output = _pipe()
        try:
            with theirs:
                self._process = _popen("worker", theirs.fileno(), modules, environ.variables(), output)
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
            self._process.wait(_PATIENCE)
        self.ended()
        self.sock.close()
        os.close(self.output)
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


class _Marked:
    """An environment with a mark in it, by which processes that slipped away are known again."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._token = secrets.token_hex(8)

    def variables(self) -> dict[str, str]:
        return {**self._environ, _MARK: self._token}

    def kill_marked(self) -> None:
        """Kill every process that still carries the mark (Linux; nothing elsewhere)."""
        mark = f"{_MARK}={self._token}".encode()
        for _ in range(10):  # a process may fork while it is looked for
            found = [pid for pid in _pids() if mark in _environment(pid).split(b"\0")]
            for pid in found:
                limits.kill(pid)
            if not found:
                return


def _pids() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and int(p.name) != os.getpid()]
    return []


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _popen(
    role: str, fd: int, modules: Sequence[str], environ: Mapping[str, str], output: int | None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, boot.__file__, _search_path(), role, str(fd), str(os.getpid()), *modules],
        pass_fds=[fd],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if output is None else output,
        stderr=subprocess.DEVNULL if output is None else output,
        start_new_session=True,
    )


def _search_path() -> str:
    """The folders that this process imports from, without the current one: no file there is imported by accident."""
    here = os.getcwd()
    return os.pathsep.join(folder for folder in sys.path if folder and os.path.abspath(folder) != here)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        limits.kill_group(process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)


def _pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs


def _pipe() -> tuple[int, int]:
    """A pipe whose reading end does not block, as wide as the system lets it be."""
    import fcntl

    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1 << 20)
    return reading, writing


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
