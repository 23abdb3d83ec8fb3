"""The messages between the main process and its workers, and how they are framed.

A frame is a mark, the body's length, its CRC-32, and the body in MessagePack. The mark and the checksum are there
because a worker runs code that may write anything to any descriptor; a frame is believed only if it is whole.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

LIMIT = 64 << 20
"""The most bytes a frame's body may have."""

_MARK = b"\xa9amp"
_HEAD = struct.Struct("!4sII")


class Garbage(Exception):
    """Bytes that are no message, or a message that has no place there."""


class Open(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """First of all: make the session. `memory` is the cap on new data in bytes, where the system can set one."""

    entry: str
    argument: bytes
    memory: int | None


class Task(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Run this payload; `timeout` in seconds is what the worker's own last resort goes by."""

    index: int
    payload: bytes
    timeout: float


class Check(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Run the canary, unless it just ran, and say the State."""


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The session is open and its canary is fine."""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """There will be no session, and why."""

    detail: str


class Begin(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A task starts now, at this reading of the system's monotonic clock in seconds."""

    index: int
    at: float


class Said(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What the running task announced."""

    index: int
    line: bytes


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A task returned a body, or raised what `detail` names."""

    index: int
    raised: bool
    body: bytes
    detail: str
    seconds: float


class State(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """After a task or a check: the names of what it left changed, and what is wrong with the device ("" nothing)."""

    drift: tuple[str, ...]
    canary: str


class Forked(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A keeper has forked the worker with this pid."""

    pid: int


class Exited(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A keeper's worker is gone, with all it started; `code` is negative for a signal, `at` the monotonic clock."""

    code: int
    at: float


ToWorker = Open | Task | Check
FromWorker = Ready | Failed | Begin | Said | Done | State
FromKeeper = Forked | Exited

to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
from_keeper: msgspec.msgpack.Decoder[FromKeeper] = msgspec.msgpack.Decoder(FromKeeper)
encode = msgspec.msgpack.Encoder().encode

T = TypeVar("T")


def frame(message: ToWorker | FromWorker) -> bytes:
    """A message as one frame; ValueError where it is larger than LIMIT."""
    body = encode(message)
    if len(body) > LIMIT:
        raise ValueError(f"a message of {len(body)} bytes is over the limit of {LIMIT}")
    return _HEAD.pack(_MARK, len(body), zlib.crc32(body)) + body


class Reader(Generic[T]):
    """Puts frames together from bytes as they come, and decodes them."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[T]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Add bytes that arrived."""
        self._buffer += data

    def messages(self) -> Iterator[T]:
        """Every message that is whole by now, in order; raises Garbage at the first that cannot be one."""
        while (body := self._take()) is not None:
            try:
                yield self._decoder.decode(body)
            except (msgspec.MsgspecError, ValueError) as error:
                raise Garbage(f"a message that cannot be read: {error}") from None

    def _take(self) -> bytes | None:
        start = bytes(self._buffer[: len(_MARK)])
        if start != _MARK[: len(start)]:
            raise Garbage("bytes that are no message")
        if len(self._buffer) < _HEAD.size:
            return None
        _, length, checksum = _HEAD.unpack_from(self._buffer)
        if length > LIMIT:
            raise Garbage(f"a message of {length} bytes, over the limit of {LIMIT}")
        if len(self._buffer) < _HEAD.size + length:
            return None
        body = bytes(self._buffer[_HEAD.size : _HEAD.size + length])
        del self._buffer[: _HEAD.size + length]
        if zlib.crc32(body) != checksum:
            raise Garbage("a message that was written over")
        return body
