"""What identifies an Apple GPU: the chip's generation, macOS, and what torch's MPS code reads at start."""

from __future__ import annotations

import platform
import re

from amp_matrix.environment.common import flag, variable
from amp_matrix.environment.errors import CaptureError
from amp_matrix.environment.sysctl import sysctl
from amp_matrix.survey import Environment

_VARIABLES = ("PYTORCH_ENABLE_MPS_FALLBACK", "PYTORCH_MPS_FAST_MATH", "PYTORCH_MPS_PREFER_METAL")


def read(index: int, may_initialize: bool = False) -> Environment:
    """The fields of the Mac's one GPU; CaptureError off the Mac."""
    model, macos = sysctl("machdep.cpu.brand_string"), macos_version()
    if platform.system() != "Darwin":
        raise CaptureError(f"not a Mac: {platform.system()} has no MPS")
    if not model or not macos:
        raise CaptureError("macOS does not tell its version or the chip's name")
    return Environment(
        identity=identify(model, macos) | {name: variable(name) for name in _VARIABLES},
        recorded={"macos_patch": macos, "model": model, "cores": flag(_cores)},
    )


def identify(model: str, macos: str) -> dict[str, str]:
    """The identity's fields of a Mac, by its processor's name and macOS' version; a patch of macOS does not count."""
    return {"chip": chip(model), "macos": ".".join(macos.split(".")[:2])}


def chip(model: str) -> str:
    """The chip's generation: `Apple M2` for M2 Pro, Max and Ultra too, which have more of the same cores.

    A virtual machine's name is kept whole: its GPU is another one.
    """
    match = re.match(r"Apple M\d+", model)
    return match[0] if match and "Virtual" not in model else model


def macos_version() -> str:
    """macOS' version, `14.5` or `14.5.1`; "" off the Mac. The kernel's word: Python's is 10.16 under compatibility."""
    return sysctl("kern.osproductversion") or platform.mac_ver()[0]


def _cores() -> int:
    import torch

    return int(torch.backends.mps.get_core_count())  # torch 2.7 on
