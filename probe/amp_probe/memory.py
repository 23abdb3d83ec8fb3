"""How much memory there is for the cells, and how much a process has."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

_LEAST, _MOST = 512 << 20, 2 << 30
_CGROUP = Path("/sys/fs/cgroup")
_PROC = Path("/proc")

INTERVAL = 0.05 if (_PROC / "self" / "statm").exists() else 1.0
"""Seconds between two looks at a worker's memory. Without /proc each look costs a run of `ps`."""


def default_budget(workers: int) -> int:
    """Bytes that each of so many workers may take: together half of what is available now, from 512 MiB to 2 GiB each.

    Half, because the rest of the machine and the page cache need room as well. 2 GiB, because a job that allocates
    without end must reach its budget before its time is up, and touching a GiB takes up to two seconds.
    """
    return min(max(_available() // 2 // workers, _LEAST), _MOST)


def resident(pid: int) -> int:
    """Resident bytes of a process; 0 where it is gone or cannot be seen."""
    try:
        pages = int((_PROC / str(pid) / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0 if _PROC.joinpath("self").exists() else _resident_by_ps(pid)


def _resident_by_ps(pid: int) -> int:
    command = ["ps", "-o", "rss=", "-p", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
        return int(done.stdout) << 10
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0


def _available() -> int:
    """Bytes available on this machine or, if less, to this control group."""
    found = [_machine()]
    with contextlib.suppress(OSError, ValueError):  # no control group, or "max"
        limit = int((_CGROUP / "memory.max").read_text())
        found.append(limit - int((_CGROUP / "memory.current").read_text()))
    return min(found)


def _machine() -> int:
    with contextlib.suppress(OSError, StopIteration, ValueError, IndexError):
        lines = (_PROC / "meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
