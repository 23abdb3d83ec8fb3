"""What every device's environment has: torch's build, the system, and the flags of float32 arithmetic."""

from __future__ import annotations

import functools
import importlib.metadata
import operator
import os
import platform
import re
from collections.abc import Callable
from typing import Any

from amp_matrix.survey import Environment

_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
_FLOAT32_PLACES = {
    "cpu": ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"),
    "cuda": ("cuda.matmul", "cudnn.conv", "cudnn.rnn"),
    "mps": (),
    "xpu": ("mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"),
}
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,:+-]{0,39}")


def read(kind: str, index: int) -> Environment:
    """The fields that a device of any kind has."""
    import torch

    return Environment(
        identity={
            "device": kind,
            "torch": str(torch.__version__),  # a TorchVersion, which no document can hold
            "torch_git": str(torch.version.git_version or ""),
            "architecture": architecture(),
            "os": platform.system(),
        },
        scoped=float32_flags(kind) | {name: version(name) for name in ("transformer_engine", "torchao")},
        recorded={**_system(), "index": str(index), "threads": str(torch.get_num_threads())},
    )


def architecture() -> str:
    """The machine's architecture under one name on every system: `x86_64`, `aarch64`."""
    machine = platform.machine().lower()
    return _ARCHITECTURES.get(machine, machine)


def float32_flags(kind: str) -> dict[str, str]:
    """Flags that let a kind of device multiply float32 in a narrower format; most are new in torch 2.9."""
    import torch

    flags = {"float32_matmul_precision": flag(torch.get_float32_matmul_precision)}
    for place in ("", *_FLOAT32_PLACES[kind]):
        path = ".".join(filter(None, ("backends", place, "fp32_precision")))
        flags[path.removeprefix("backends.")] = flag(functools.partial(operator.attrgetter(path), torch))
    if flags.get("cudnn.conv.fp32_precision") == "":
        flags["cudnn.allow_tf32"] = flag(lambda: torch.backends.cudnn.allow_tf32)
    return flags


def flag(get: Callable[[], Any]) -> str:
    """A setting's value as text: yes or no for a bool, "" where this torch has no such setting.

    `mixed` where torch refuses to say, which it does once its old and new float32 settings contradict each other.
    """
    try:
        value = get()
    except (AttributeError, TypeError):
        return ""
    except RuntimeError:
        return "mixed"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def variable(*names: str) -> str:
    """The first of some environment variables that is set, "" where none is.

    A value that is not a plain word may hold a path, and becomes `other`.
    """
    value = next((os.environ[n] for n in names if n in os.environ), None)
    if value is None:
        return ""
    return value if _SAFE.fullmatch(value) else "other"


@functools.cache
def version(distribution: str) -> str:
    """An installed distribution's version, or ""."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def _system() -> dict[str, str]:
    kernel = re.match(r"\d+(\.\d+)*", platform.release())
    return {
        "python": platform.python_version(),
        "distribution": _distribution(),
        "kernel": kernel[0] if kernel else "",
    }


def _distribution() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ""
    return " ".join(release.get(k, "") for k in ("ID", "VERSION_ID")).strip()
