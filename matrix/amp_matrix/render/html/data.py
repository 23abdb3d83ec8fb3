"""What the page's script reads: cells and environments as plain values, every string made safe to show."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import msgspec
from markupsafe import Markup

from amp_matrix.matrix import Known
from amp_matrix.render.grid import Block
from amp_matrix.render.words import LOOKS, key, plain

_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def numbered(blocks: Sequence[Block]) -> dict[tuple[int, str, str, str], int]:
    """Each cell's number on the page, by (block, probe, variant, precision)."""
    ids = (
        (b, row.probe, row.variant, precision)
        for b, block in enumerate(blocks)
        for family in block.families
        for row in family.rows
        for precision in block.precisions
        if precision in row.cells
    )
    return {cell: number for number, cell in enumerate(ids)}


def script_data(blocks: Sequence[Block], numbers: dict[tuple[int, str, str, str], int]) -> Markup:
    """JSON for a `script type=application/json`: nothing in it can close the element or open another."""
    rows = {(b, r.probe, r.variant): r for b, block in enumerate(blocks) for f in block.families for r in f.rows}
    data = {
        "cells": [_cell(b, rows[b, probe, variant].cells[precision]) for b, probe, variant, precision in numbers],
        "blocks": [{"title": block.title, "environment": environment_rows(block)} for block in blocks],
        "looks": {key(status): {"icon": look.icon, "word": look.word} for status, look in LOOKS.items()},
    }
    return Markup(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES))


def environment_rows(block: Block) -> list[tuple[str, str, str]]:
    """(class, field, value) of a block's environment, the identity first."""
    environment = block.environment
    groups = (("identity", environment.identity), ("scoped", environment.scoped), ("recorded", environment.recorded))
    return [(name, plain(k), plain(v)) for name, fields in groups for k, v in sorted(fields.items())]


def _cell(block: int, known: Known) -> dict[str, Any]:
    cell = known.cell
    outcome = _clean(msgspec.to_builtins(cell.outcome, enc_hook=float))  # enc_hook: a Real read from a document
    return {
        "b": block,
        "id": plain(cell.id),
        "tier": plain(cell.tier),
        "evidence": plain(cell.evidence),
        "survey": plain(known.survey, 12).rstrip("…"),
        "started": plain(known.started),
        **outcome,
        "status": key(cell.outcome.status),
    }


def _clean(value: Any) -> Any:
    """Strings by `plain`; numbers with four digits, non-finite ones as text."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {plain(name): _clean(inner) for name, inner in value.items() if name != "curves"}
    return [_clean(inner) for inner in value] if isinstance(value, (list, tuple)) else value
