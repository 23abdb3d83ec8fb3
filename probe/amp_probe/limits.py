"""What a process of a pool asks of the system for itself: to die with its parent, to adopt orphans, to be bounded."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

ORPHANED = 113
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PROC = Path("/proc/self")


def die_with(parent: int, signum: int) -> None:
    """Have the system send `signum` when the parent's thread that started this process ends (Linux; nothing elsewhere).

    Exits at once if the parent is gone already: it may have died before the request.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(ORPHANED)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none escapes (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_children(seconds: float = 5.0) -> None:
    """Kill and reap every child, and those that are adopted meanwhile, for at most so many seconds (Linux)."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            for child in _children():
                kill(child)
            time.sleep(0.001)


def kill(pid: int) -> None:
    """SIGKILL to one process, if it is still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """SIGKILL to a whole process group, if it is still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def be_expendable() -> None:
    """Be the first that the system kills when its memory runs out, and write no core file when crashing.

    A core limit of 1 also keeps a core handler from being started (core(5)); 0 does not.
    """
    with contextlib.suppress(OSError):
        (_PROC / "oom_score_adj").write_text("1000")
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))


def cap_data(budget: int) -> None:
    """Let this process have so many bytes of data more than it has now; beyond that, allocation fails (Linux).

    Not RLIMIT_AS: address space that is only reserved would count.
    """
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _data_size() + budget
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _data_size() -> int:
    lines = (_PROC / "status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData"))


def _children() -> list[int]:
    listing = _PROC / "task" / str(os.getpid()) / "children"
    with contextlib.suppress(OSError):
        return [int(pid) for pid in listing.read_text().split()]
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and _parent(p) == os.getpid()]


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0
