"""Processes that slipped away from the worker that started them."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from amp_probe import limits

_MARK = "WORKER_OF_AMP_PROBE"


class Marked:
    """An environment with a mark in it, by which processes that slipped away are known again."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._token = secrets.token_hex(8)

    def variables(self) -> dict[str, str]:
        """The environment with the mark."""
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
