"""CUDA devices, and AMD's under ROCm, which torch calls by the same name."""

from __future__ import annotations

import os
import warnings
from typing import NamedTuple

import torch

from amp_matrix.environment.nvml import driver_version
from amp_probe.devices.canary import canary

__all__ = ["absence", "canary", "forks", "names", "peak_bytes", "reset_peak", "synchronize"]

forks = False
"""A CUDA context does not survive a fork."""


class Facts(NamedTuple):
    """What decides whether CUDA devices can be used. `driver` is "" where no NVIDIA driver answers."""

    cuda: str
    hip: str
    available: bool
    driver: str
    visible: str | None


def absence() -> str:
    """Why no CUDA device can be used, or ""."""
    with warnings.catch_warnings():  # torch warns of an old driver; the reason says it
        warnings.simplefilter("ignore")
        available = torch.cuda.is_available()
    hip = torch.version.hip or ""
    visible = next((os.environ[n] for n in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if n in os.environ), None)
    return reason(Facts(torch.version.cuda or "", hip, available, "" if hip else driver_version(), visible))


def reason(facts: Facts) -> str:
    """Why no device can be used, from the facts alone, or ""."""
    if not facts.cuda and not facts.hip:
        return "torch built without CUDA"
    if facts.available:
        return ""
    if facts.cuda and not facts.driver:
        return "no NVIDIA driver"
    if facts.visible is not None and facts.visible.strip() in ("", "-1"):
        return "every CUDA device is hidden by CUDA_VISIBLE_DEVICES"
    if facts.hip:
        return f"ROCm {facts.hip} found no device"
    return f"the NVIDIA driver {facts.driver} found no device that torch for CUDA {facts.cuda} can use"


def names() -> tuple[str, ...]:
    """Every visible CUDA device."""
    return () if absence() else tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))


def synchronize(device: torch.device) -> None:
    """Wait for every kernel on the device; a failed one raises here."""
    torch.cuda.synchronize(device)


def reset_peak(device: torch.device) -> None:
    """Start measuring anew what torch's allocator gave out."""
    torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """The most bytes that torch's allocator had given out at once since the reset."""
    return int(torch.cuda.max_memory_allocated(device))
