"""One device's environment, put together from what all devices share and what its kind adds."""

from __future__ import annotations

import importlib
import re

from amp_matrix.kinds import KINDS, hint
from amp_matrix.survey import Environment

_NAME = re.compile(r"(?P<kind>[a-z]+)(?::(?P<index>\d+))?", re.ASCII)


def capture(device: str, *, may_initialize: bool = False) -> Environment:
    """The environment of `cpu`, `cuda:0`, `mps` or `xpu:0` as it is now.

    Never creates a CUDA context unless `may_initialize`, which a worker may allow: without it a GPU that NVML cannot
    name for certain is a CaptureError. ValueError for a device name that means nothing.
    """
    kind, index = split(device)
    common = importlib.import_module("amp_matrix.environment.common").read(kind, index)
    own = importlib.import_module(f"amp_matrix.environment.{kind}").read(index, may_initialize)
    return Environment(
        identity={**common.identity, **own.identity},
        scoped={**common.scoped, **own.scoped},
        recorded={**common.recorded, **own.recorded},
    )


def split(device: str) -> tuple[str, int]:
    """The kind and the index of a device's name; ValueError names the nearest kind."""
    match = _NAME.fullmatch(device)
    if match is None or match["kind"] not in KINDS:
        raise ValueError(f"unknown device {device!r}; {hint(device)}")
    return match["kind"], int(match["index"] or 0)
