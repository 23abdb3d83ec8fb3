"""The state of a worker process that a job must leave as it found it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

_HANDLED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGCHLD", "SIGPIPE", "SIGUSR1", "SIGUSR2", "SIGABRT", "SIGSEGV")
_SIGNALS = [getattr(signal, name) for name in _HANDLED if hasattr(signal, name)]
_LIMITS = ("RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_DATA", "RLIMIT_NOFILE", "RLIMIT_STACK")


def process_state() -> dict[str, object]:
    """What the process itself has: directory, environment, threads, children, signals, limits. Cheap to ask."""
    state: dict[str, object] = {
        "cwd": _directory(),
        "python_threads": len(sys._current_frames()),  # also those that threading did not start
        "recursion_limit": sys.getrecursionlimit(),
        "signal_handlers": [signal.getsignal(s) for s in _SIGNALS],
        "signal_mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "timer": signal.getitimer(signal.ITIMER_REAL)[1] or signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        "child_processes": _has_children(),
        "limits": _limits(),
    }
    state.update((f"environ {name}", value) for name, value in os.environ.items())
    return state


def drift(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[str, ...]:
    """The sorted names whose values differ, or that only one of the two has."""
    if before == after:
        return ()
    missing = object()
    return tuple(sorted(k for k in before.keys() | after.keys() if before.get(k, missing) != after.get(k, missing)))


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _has_children() -> bool:
    """Whether there is a child, running or not reaped; False where the system cannot tell without reaping (macOS)."""
    if not hasattr(os, "waitid"):
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _limits() -> list[tuple[int, int]]:
    import resource

    return [resource.getrlimit(getattr(resource, name)) for name in _LIMITS if hasattr(resource, name)]
