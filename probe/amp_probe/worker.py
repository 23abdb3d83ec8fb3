"""The worker's end: a loop that runs payloads one after another and says what became of each.

Runs in a process of its own. Nothing that a payload does may reach the main process but through these messages.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn, Protocol

from amp_probe import guard, limits
from amp_probe.wire import (
    LIMIT,
    Begin,
    Check,
    Done,
    Failed,
    FromWorker,
    Open,
    Reader,
    Ready,
    Said,
    State,
    Task,
    frame,
    to_worker,
)

UNSENT = 97
"""The exit code of a worker that could not reach the main process any more."""

_CANARY_EVERY = 50
_GRACE = 2.0
_SLACK = 1.0


@dataclass(frozen=True)
class Reply:
    """What a session says to a payload. `suspect`: the device may be the worse for it, so the canary runs."""

    body: bytes
    suspect: bool


class Session(Protocol):
    """What runs payloads in a worker."""

    def run(self, payload: bytes, announce: Callable[[bytes], None]) -> Reply:
        """Run one payload; what it announces is kept even if it never returns."""

    def canary(self) -> str:
        """What is wrong with the device, or ""."""

    def fingerprint(self) -> dict[str, str]:
        """Global state that a payload must leave as it found it."""


def main(fd: int, parent: int, modules: Iterable[str]) -> NoReturn:
    """Be a worker that was started as a program, on the socket `fd`, as a child of `parent`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limits.die_with(parent, signal.SIGKILL)
    preload(modules)
    serve(fd)


def preload(modules: Iterable[str]) -> None:
    """Import modules ahead of need; one that cannot be imported is reported when the session needs it."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:  # noqa: BLE001 -- the session's own import raises it again, and that is answered
            continue


def serve(fd: int) -> NoReturn:
    """Open the session that the first message names and run tasks until the main process is gone."""
    try:
        os.set_inheritable(fd, False)
        limits.be_expendable()
        faulthandler.enable(file=2)
        channel = _Channel(socket.socket(fileno=fd))
        message = channel.receive()
        if isinstance(message, Open):
            _open(channel, message).loop()
    except BaseException:  # noqa: BLE001 -- whatever it was, interpreter shutdown must not run in a process like this
        os._exit(UNSENT)
    os._exit(0)


class _Channel:
    """The worker's side of its socket. Only the process that made it can send: a forked copy leaves."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._reader = Reader(to_worker)
        self.idle: Callable[[], None] = lambda: None

    def send(self, message: FromWorker) -> None:
        """Send a message, whole."""
        self.send_frame(frame(message))

    def send_frame(self, data: bytes) -> None:
        """Send an encoded message, whole."""
        self.leave_if_copied()
        with self._lock:
            self._sock.sendall(data)

    def receive(self) -> Open | Task | Check:
        """The next message; `idle` is called before waiting for one. Exits where there is no more main process."""
        while (message := next(self._reader.messages(), None)) is None:
            data = self._read()
            if not data:
                os._exit(0)
            self._reader.feed(data)
        return message

    def leave_if_copied(self) -> None:
        """End this process if a task forked it: it must not answer in the worker's place."""
        if os.getpid() != self._pid:
            os._exit(0)

    def _read(self) -> bytes:
        try:
            return self._sock.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self.idle()
            return self._sock.recv(1 << 16)


class _LastResort:
    """Ends this process some seconds after a task's time is up, should the main process not have done so.

    faulthandler's timer is a C thread: it needs neither the GIL nor a living parent. Arming it starts a thread, so
    it is armed with some slack and left alone while tiny tasks go by.
    """

    def __init__(self) -> None:
        self._end = 0.0

    def arm(self, timeout: float) -> None:
        """Allow `timeout` seconds from now, and a little more."""
        least = time.monotonic() + timeout + _GRACE
        if not least <= self._end <= least + _SLACK:
            self._end = least + _SLACK
            faulthandler.dump_traceback_later(timeout + _GRACE + _SLACK, exit=True, file=2)

    def disarm(self) -> None:
        """Wait for work as long as it takes."""
        if self._end:
            faulthandler.cancel_dump_traceback_later()
            self._end = 0.0


def _open(channel: _Channel, message: Open) -> _Server:
    """The session's server once its canary is fine; says why and exits otherwise."""
    try:
        module, _, function = message.entry.partition(":")
        session: Session = getattr(importlib.import_module(module), function)(message.argument)
        trouble = _canary(session)
        trouble = f"the canary failed: {trouble}" if trouble else ""
        if not trouble and message.memory is not None:
            limits.cap_data(message.memory)
    except BaseException as error:  # noqa: BLE001 -- a session that cannot be opened is answered, however it fails
        trouble = describe(error)
    if trouble:
        channel.send(Failed(trouble))
        os._exit(0)
    server = _Server(channel, session)
    channel.send(Ready())
    return server


class _Server:
    """Runs tasks in a session and watches the state they leave."""

    def __init__(self, channel: _Channel, session: Session) -> None:
        self._channel, self._session = channel, session
        self._last_resort = _LastResort()
        channel.idle = self._last_resort.disarm
        self._since_canary = 0
        self._clean = self._state()

    def loop(self) -> NoReturn:
        """Take messages until this process ends."""
        while True:
            message = self._channel.receive()
            if isinstance(message, Task):
                self._task(message)
            else:
                self._settle(canary=self._since_canary > 0)

    def _task(self, task: Task) -> None:
        self._last_resort.arm(task.timeout)
        self._channel.send(Begin(task.index, time.monotonic()))
        answer, suspect = self._run(task)
        self._channel.send_frame(answer)
        self._since_canary += 1
        self._settle(canary=suspect or self._since_canary >= _CANARY_EVERY)

    def _run(self, task: Task) -> tuple[bytes, bool]:
        """The answer, encoded: an unfit result is the task's fault, and must be found before anything is sent."""
        started = time.perf_counter()
        try:
            reply = self._session.run(task.payload, lambda line: self._channel.send(Said(task.index, line)))
            if not isinstance(reply.body, bytes):
                raise TypeError(f"a reply's body must be bytes, not {type(reply.body).__name__}")
            if len(reply.body) > LIMIT:  # before it is copied
                raise ValueError(f"a reply of {len(reply.body)} bytes is over the limit of {LIMIT}")
            done = Done(task.index, False, reply.body, "", time.perf_counter() - started)
            return frame(done), bool(reply.suspect)
        except BaseException as error:  # noqa: BLE001 -- SystemExit and KeyboardInterrupt of a task end the task alone
            self._channel.leave_if_copied()
            detail = describe(error)
        return frame(Done(task.index, True, b"", detail, time.perf_counter() - started)), True

    def _settle(self, canary: bool) -> None:
        """Say what was left changed, and leave if this process is not as clean as it was."""
        drift = guard.drift(self._clean, self._state())
        trouble = ""
        if (
            canary and not drift
        ):  # a canary in a changed process would judge the change; the next worker's judges the device
            trouble = _canary(self._session)
            self._since_canary = 0
        self._channel.send(State(drift, trouble))
        if drift or trouble:
            os._exit(0)

    def _state(self) -> dict[str, object]:
        try:
            return {**guard.process_state(), **self._session.fingerprint()}
        except Exception as error:  # noqa: BLE001 -- state that cannot be read any more has changed
            return {"fingerprint": describe(error)}


def _canary(session: Session) -> str:
    try:
        return session.canary()
    except BaseException as error:  # noqa: BLE001 -- a canary that raises is a canary that failed
        return describe(error)


def describe(error: BaseException) -> str:
    """An exception's type and text, at most 2000 characters, whatever its own code does."""
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 -- the exception's own __str__ failed
        text = ""
    line = (f"{name}: {text}" if text else name)[:2000]
    return line.encode("utf-8", "backslashreplace").decode()
