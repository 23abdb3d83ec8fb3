"""Plans and surveys as one JSON document: {"format": 1, "kind": "report", "plans": [...], "surveys": [...]}."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from amp_matrix import codec
from amp_matrix.plan import Plan
from amp_matrix.survey import Survey


def render(surveys: Iterable[Survey], plans: Iterable[Plan]) -> bytes:
    """The report as UTF-8 JSON with a newline at the end. Non-finite numbers are "nan", "inf" and "-inf"."""
    written = b",\n".join(codec.encode(survey).strip() for survey in surveys)
    values = [_finite(msgspec.to_builtins(plan, enc_hook=float)) for plan in plans]  # float: a Real from a document
    chosen = msgspec.json.encode(values, order="sorted")
    return b'{"format":1,"kind":"report","plans":%b,"surveys":[%b]}\n' % (chosen, written)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value
