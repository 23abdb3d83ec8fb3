"""The CPU: always there, nothing to wait for, and its memory is the process's."""

from __future__ import annotations

import sys

import torch

from amp_probe.devices.canary import canary

__all__ = ["absence", "canary", "forks", "names", "peak_bytes", "reset_peak", "synchronize"]

forks = sys.platform == "linux"
"""Whether workers may be forked from a process that has imported torch and run no op."""

_CLEAR_REFS = "/proc/self/clear_refs"


def absence() -> str:
    """Why the device cannot be used; the CPU always can."""
    return ""


def names() -> tuple[str, ...]:
    """The devices of this kind."""
    return ("cpu",)


def synchronize(device: torch.device) -> None:
    """Wait for what the device was given; a CPU op is done when it returns."""


def reset_peak(device: torch.device) -> None:
    """Start measuring peak memory anew, where the system can: on Linux."""
    if sys.platform != "linux":
        return
    try:
        with open(_CLEAR_REFS, "w", encoding="ascii") as file:
            file.write("5")
    except OSError:  # a container may forbid it; the peak is then the process's whole life's
        return


def peak_bytes(device: torch.device) -> int:
    """The process's peak resident memory in bytes; 0 where it cannot be known."""
    if sys.platform == "win32":
        return 0
    import resource

    if sys.platform == "linux":
        peak = _high_water()
        if peak:
            return peak
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage if sys.platform == "darwin" else usage * 1024


def _high_water() -> int:
    """VmHWM in bytes: the peak since the last reset, which getrusage does not know."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
            return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
    except OSError:
        return 0
