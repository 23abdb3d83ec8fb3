"""The main process's end of a worker's socket and of its output. Nothing here ever waits."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable, Iterator

from amp_probe.wire import FromWorker, Reader, ToWorker, frame, from_worker

_CHUNK = 1 << 18
_TAIL = 1 << 13
Handler = Callable[[int], None]
"""Called with the selector's events when a registered descriptor has some."""


class Link:
    """Sends to a worker and reads what it says. A worker that cannot be reached only reads as `closed`."""

    def __init__(self, sock: socket.socket, selector: selectors.BaseSelector, handler: Handler) -> None:
        self._sock, self._selector, self._handler = sock, selector, handler
        self._unsent = bytearray()
        self._reader = Reader(from_worker)
        self.closed = False
        selector.register(sock, selectors.EVENT_READ, handler)

    def send(self, message: ToWorker) -> None:
        """Queue a message and send what the socket takes now."""
        self._unsent += frame(message)
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes now; wait for room only while something is left."""
        if self.closed:
            return
        before = len(self._unsent)
        try:
            sent = self._sock.send(self._unsent) if self._unsent else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._unsent.clear()  # it is dead; reading says so after its last words
            self._watch(selectors.EVENT_READ)
            return
        del self._unsent[:sent]
        if before or self._unsent:
            self._watch(selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0))

    def messages(self, chunks: int = 1) -> Iterator[FromWorker]:
        """What the worker has said by now, up to so many chunks: it may speak faster than it is heard.

        Sets `closed` at the end of it. Raises Garbage.
        """
        for _ in range(chunks):
            if self.closed:
                return
            try:
                data = self._sock.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.detach()
            self._reader.feed(data)
            yield from self._reader.messages()

    def detach(self) -> None:
        """Read nothing more."""
        if not self.closed:
            self.closed = True
            self._selector.unregister(self._sock)

    def _watch(self, events: int) -> None:
        if self._selector.get_key(self._sock).events != events:
            self._selector.modify(self._sock, events, self._handler)


class Output:
    """What a worker prints: read so that it never waits, and forgotten but for the end."""

    def __init__(self, fd: int, selector: selectors.BaseSelector) -> None:
        self._fd, self._selector = fd, selector
        self._tail = b""
        self._open = True
        selector.register(fd, selectors.EVENT_READ, self.drain)

    def drain(self, events: int = 0) -> None:
        """Read what is there, up to some chunks: it may be printed faster than it is read."""
        for _ in range(8):
            if not self._open:
                return
            try:
                data = os.read(self._fd, 1 << 20)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.detach()
            self._tail = (self._tail + data[-_TAIL:])[-_TAIL:]

    def forget(self) -> None:
        """Start anew: a task begins."""
        self._tail = b""

    def last_words(self) -> str:
        """The last line printed before Python's own account of a fatal error, or ""."""
        text = self._tail.decode("utf-8", "replace").partition("Fatal Python error:")[0]
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def detach(self) -> None:
        """Read nothing more."""
        if self._open:
            self._open = False
            self._selector.unregister(self._fd)
