"""Cell ids as people type them: `op.softmax[large]@bf16-mixed`, `cuda:0/op.matmul@fp32`."""

from __future__ import annotations

import re

import msgspec

from amp_matrix.precision import Precision
from amp_matrix.precision import parse as parse_precision
from amp_matrix.survey import cell_id

_DEVICE = r"(?P<device>[a-z]+(?::\d+)?)/"
_PROBE = r"(?P<probe>[a-z0-9_]+(?:\.[A-Za-z0-9_]+)+)"
_FORM = re.compile(rf"(?:{_DEVICE})?{_PROBE}(?:\[(?P<variant>[a-z0-9_]+)\])?@(?P<precision>.+)", re.ASCII)


class CellId(msgspec.Struct, frozen=True):
    """A cell's name in parts; `device` is empty where only one device is meant."""

    probe: str
    precision: Precision
    variant: str = "base"
    device: str = ""

    def __str__(self) -> str:
        bare = cell_id(self.probe, self.variant, str(self.precision))
        return f"{self.device}/{bare}" if self.device else bare


def parse(text: str) -> CellId:
    """Read a cell's id; ValueError says what is wrong with it."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a cell id; write probe[variant]@precision, like op.softmax[large]@bf16-mixed"
        )
    if match["variant"] == "base":
        raise ValueError(f"{text!r}: the base variant is not written; leave [base] out")
    precision = parse_precision(match["precision"])
    return CellId(match["probe"], precision, match["variant"] or "base", match["device"] or "")
