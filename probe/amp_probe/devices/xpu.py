"""Intel GPUs, by torch's name for them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from amp_probe.devices.canary import canary

__all__ = ["absence", "canary", "forks", "names", "peak_bytes", "reset_peak", "synchronize"]

forks = False
"""A SYCL context does not survive a fork."""


class Facts(NamedTuple):
    """What decides whether Intel GPUs can be used."""

    built: bool
    devices: int


def absence() -> str:
    """Why no Intel GPU can be used, or ""."""
    built = bool(torch.xpu._is_compiled())
    return reason(Facts(built, torch.xpu.device_count() if built else 0))


def reason(facts: Facts) -> str:
    """Why no Intel GPU can be used, from the facts alone, or ""."""
    if not facts.built:
        return "torch built without XPU"
    return "" if facts.devices else "the Intel GPU driver is missing or found no device"


def names() -> tuple[str, ...]:
    """Every visible Intel GPU."""
    return () if absence() else tuple(f"xpu:{i}" for i in range(torch.xpu.device_count()))


def synchronize(device: torch.device) -> None:
    """Wait for every kernel on the device."""
    torch.xpu.synchronize(device)


def reset_peak(device: torch.device) -> None:
    """Start measuring anew what torch's allocator gave out (torch 2.6 on)."""
    reset = getattr(torch.xpu, "reset_peak_memory_stats", None)
    if reset is not None:
        reset(device)


def peak_bytes(device: torch.device) -> int:
    """The most bytes that torch's allocator had given out at once since the reset; 0 before torch 2.6."""
    peak = getattr(torch.xpu, "max_memory_allocated", None)
    return int(peak(device)) if peak is not None else 0
