"""Pools whose workers run fault_session, and how to know every process that came of them."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from amp_probe.isolate import Answer, Job, Pool, Spec

HERE = str(Path(__file__).parent)
ENTRY = "fault_session:open_session"


def job(name: str, argument: Any = None, timeout: float = 10.0) -> Job:
    """A job that runs a function of fault_session."""
    return Job(msgspec.msgpack.encode((name, argument)), timeout)


def value(answer: Answer) -> Any:
    """What the function returned; the answer must be one."""
    assert answer.kind == "done", answer
    return msgspec.msgpack.decode(answer.body)


class Lab:
    """Makes specs and pools, and knows every process that comes of them by a mark in its environment."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.job, self.value = job, value

    def environ(self, **more: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": HERE, "FAULT_TEST": self.mark, **more}

    def spec(self, fork: bool = True, entry: str = ENTRY, argument: bytes = b"", **more: Any) -> Spec:
        """A spec without torch; 200 MiB of memory a worker."""
        settings = {"environ": self.environ(), "preload": ("fault_session",), "memory": 200 << 20, **more}
        return Spec(entry=entry, argument=argument, fork=fork, **settings)

    def pool(self, fork: bool = True, workers: int = 1, **more: Any) -> Pool:
        return Pool(self.spec(fork, **more), workers)

    def processes(self) -> list[int]:
        """The processes that carry this lab's mark and still run."""
        return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and self._marked(p)]

    def gone_in(self, seconds: float) -> bool:
        """Whether every process is gone after at most so many seconds."""
        return wait(lambda: not self.processes(), seconds)

    def _marked(self, process: Path) -> bool:
        try:
            return self.mark.encode() in (process / "environ").read_bytes()
        except OSError:
            return False


def wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition came true within so many seconds."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie: reaping one that lost its parent is the system's affair."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
