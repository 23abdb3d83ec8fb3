"""The GPU of an Apple chip, through Metal Performance Shaders."""

from __future__ import annotations

import platform
from typing import NamedTuple

import torch

from amp_matrix.environment.mps import macos_version
from amp_probe.devices.canary import canary

__all__ = ["absence", "canary", "forks", "names", "peak_bytes", "reset_peak", "synchronize"]

forks = False
"""Metal does not survive a fork."""

_OLDEST = 14


class Facts(NamedTuple):
    """What decides whether MPS can be used. `macos` is a version like `14.5`, "" off the Mac."""

    system: str
    macos: str
    built: bool
    available: bool


def absence() -> str:
    """Why MPS cannot be used, or ""."""
    mps = torch.backends.mps
    return reason(Facts(platform.system(), macos_version(), mps.is_built(), mps.is_available()))


def reason(facts: Facts) -> str:
    """Why MPS cannot be used, from the facts alone, or "". torch's newer wheels need macOS 14."""
    if facts.system != "Darwin":
        return f"not a Mac: {facts.system} has no MPS"
    if not facts.built:
        return "torch built without MPS"
    if facts.available:
        return ""
    major = facts.macos.partition(".")[0]
    if major.isdecimal() and int(major) < _OLDEST:
        return f"macOS {facts.macos} is older than {_OLDEST}"
    return "Metal found no device"


def names() -> tuple[str, ...]:
    """`mps`, or nothing."""
    return () if absence() else ("mps",)


def synchronize(device: torch.device) -> None:
    """Wait for everything queued on the GPU."""
    torch.mps.synchronize()


def reset_peak(device: torch.device) -> None:
    """torch keeps no peak for MPS; unused blocks are given back, so that the reading starts low."""
    torch.mps.empty_cache()


def peak_bytes(device: torch.device) -> int:
    """The bytes that the driver holds for this process, torch's cache included, which never shrinks by itself."""
    return int(torch.mps.driver_allocated_memory())
