"""What the ways to get a worker have in common: forking.py and spawning.py are the two."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from amp_probe import boot, limits

PATIENCE = 6.0


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


def start_program(
    role: str, fd: int, modules: Sequence[str], environ: Mapping[str, str], output: int | None
) -> subprocess.Popen[bytes]:
    """Start boot.py in a role on the socket `fd`, in a session of its own, with no input; `output` None is nowhere."""
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
    try:
        here = os.getcwd()
    except OSError:  # it was deleted
        here = ""
    return os.pathsep.join(folder for folder in sys.path if folder and os.path.abspath(folder) != here)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a program's group if it still runs, and reap it."""
    if process.poll() is None:
        limits.kill_group(process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Our end, which does not block, and the worker's."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs


def wide_pipe() -> tuple[int, int]:
    """A pipe whose reading end does not block, as wide as the system lets it be."""
    import fcntl

    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1 << 20)
    return reading, writing
