"""What a pool is asked and what it answers."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["done", "raised", "crash", "timeout", "lost"]


class Answer(msgspec.Struct, frozen=True):
    """What became of a job.

    `done`: it returned `body`. `raised`: an exception, named in `detail`. `crash`: its process died. `timeout`: it was
    still running when its time was up. `lost`: it could not be run, since the device is lost. `announced` is what it
    announced, also before it died; `notes` say what it did to its worker; `seconds` is its own time.
    """

    index: int
    kind: Kind
    body: bytes = b""
    announced: tuple[bytes, ...] = ()
    detail: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0


class Job(msgspec.Struct, frozen=True):
    """A payload, and the wall seconds that it may take from when it starts in the worker."""

    payload: bytes
    timeout: float
