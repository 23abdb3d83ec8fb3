"""The zygote and its keepers: where workers are forked from on a Linux CPU.

    main process -> zygote -> one keeper a place in the pool -> the worker of now

The zygote has imported what a worker needs and *never runs an operation*: a fork after an OpenMP operation hangs in
the child. A keeper is the zygote's copy. It forks one worker after another, adopts whatever a worker leaves behind,
and says that a worker is gone only when nothing of it is left. Neither ever runs a task, so both always react.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import NoReturn

from amp_probe import limits, worker
from amp_probe.wire import Exited, Forked, encode


class _Orphaned(BaseException):
    """The zygote is gone."""


def main(fd: int, parent: int, modules: Iterable[str]) -> NoReturn:
    """Be a zygote on the control socket `fd`: each descriptor that comes over it gets a keeper."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limits.die_with(parent, signal.SIGKILL)
    os.set_inheritable(fd, False)
    control = socket.socket(fileno=fd)
    worker.preload(modules)
    gc.collect()
    gc.freeze()  # what is imported stays shared with the workers, whose collections need not walk it
    try:
        _raise_keepers(control)
    finally:
        os._exit(0)


def _raise_keepers(control: socket.socket) -> None:
    while fds := _descriptors(control, 1):
        me = os.getpid()
        if _fork() == 0:
            control.close()
            _keep(socket.socket(fileno=fds[0]), me)
        os.close(fds[0])
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
    _await_keepers()


def _await_keepers(seconds: float = 5.0) -> None:
    """Let the keepers clean up before the zygote goes, which would interrupt them."""
    until = time.monotonic() + seconds
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.001)


def _keep(control: socket.socket, parent: int) -> NoReturn:
    """Fork a worker for each pair of descriptors (its socket, its output) and say when it is gone."""
    try:
        signal.signal(signal.SIGTERM, _orphaned)
        limits.die_with(parent, signal.SIGTERM)
        limits.adopt_orphans()
        while os.getppid() == parent and (fds := _descriptors(control, 2)):
            _one_worker(control, *fds)
    except (_Orphaned, OSError):
        pass
    finally:
        os._exit(0)


def _one_worker(control: socket.socket, sock: int, output: int) -> None:
    me = os.getpid()
    pid = _fork()
    if pid == 0:
        control.close()
        _become_worker(sock, output, me)
    os.close(sock)
    os.close(output)
    with _swept(pid):
        control.send(encode(Forked(pid)))
        code = _wait(pid)
    control.send(encode(Exited(code, time.monotonic())))


def _become_worker(sock: int, output: int, parent: int) -> NoReturn:
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        limits.die_with(parent, signal.SIGKILL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        worker.serve(sock)
    finally:
        os._exit(worker.UNSENT)


@contextlib.contextmanager
def _swept(pid: int) -> Iterator[None]:
    """However this ends, kill the worker's group and every process it left behind, and reap them all."""
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        limits.kill_group(pid)
        limits.kill_children()
        signal.signal(signal.SIGTERM, _orphaned)


def _wait(pid: int) -> int:
    """Wait for a worker and give its exit code, leaving it a zombie: while it is one, its group's number is its own."""
    info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert info is not None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def _orphaned(signum: int, frame: object) -> None:
    raise _Orphaned


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 3.12 warns of threads; those that importing numpy started survive a fork
        return os.fork()


def _descriptors(control: socket.socket, count: int) -> list[int]:
    """The descriptors that come with the next message; none when the main process is gone."""
    _, fds, _, _ = socket.recv_fds(control, 16, count)
    return fds
