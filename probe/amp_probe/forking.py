"""Workers forked by a zygote (Linux): the main process's side of zygote.py."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from amp_probe import limits
from amp_probe.nursery import PATIENCE, Exit, Process, end, socket_pair, start_program, wide_pipe
from amp_probe.stray import Marked
from amp_probe.wire import Exited, Forked, from_keeper


class Forking:
    """Workers forked by keepers of one zygote (Linux)."""

    def __init__(self, modules: Sequence[str], environ: Mapping[str, str]) -> None:
        self._modules, self._environ = modules, Marked(environ)
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
        self.drop_zygote(PATIENCE)
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
            end(self._zygote)
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
                self._zygote = start_program("zygote", theirs.fileno(), self._modules, self._environ.variables(), None)
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
        self.sock, theirs = socket_pair()
        self.output, output = wide_pipe()
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
