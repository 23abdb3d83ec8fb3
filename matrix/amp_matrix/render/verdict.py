"""The sentences that come first in every form: what to use, what was rejected and why, what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from amp_matrix.plan import Gain, Plan
from amp_matrix.render.grid import Block
from amp_matrix.render.words import multiple, plain
from amp_matrix.survey import Cell, Status

KINDS = ("cpu", "cuda", "mps", "xpu")
SHOWN = 8
"""At most this many devices are named in the line that says what was measured."""


@dataclass(frozen=True)
class Rejected:
    """A precision that was not chosen: the cell that blocked it, that cell's status, and the reason."""

    precision: str
    cell: str
    status: str
    reason: str


@dataclass(frozen=True)
class Verdict:
    """A plan as people read it. `sentence` names device, hardware, task and precision."""

    sentence: str
    reason: str
    task: str
    rejected: tuple[Rejected, ...]
    caveats: tuple[str, ...]


def verdicts(plans: Iterable[Plan], blocks: Sequence[Block]) -> tuple[Verdict, ...]:
    """One verdict a plan, in the order given."""
    return tuple(_verdict(plan, _title(plan, blocks)) for plan in plans)


def measured(blocks: Sequence[Block]) -> str:
    """`Measured: cpu (...), 812 cells, 2026-12-01. Not measured: cuda, mps, xpu.`"""
    counted = [(block, sum(_was_measured(cell) for cell in block.cells)) for block in blocks]
    seen = [f"{block.title}, {_cells(n)}, {plain(block.started)[:10]}" for block, n in counted if n]
    kinds = {kind(block) for block, n in counted if n}
    missing = ", ".join(k for k in KINDS if k not in kinds)
    more = [f"and {len(seen) - SHOWN} more"] if len(seen) > SHOWN else []
    first = f"Measured: {'; '.join(seen[:SHOWN] + more)}." if seen else "Measured: nothing."
    return f"{first} Not measured: {missing}." if missing else first


def kind(block: Block) -> str:
    """The kind of a block's device: `cuda` for `cuda:0`."""
    return block.device.partition(":")[0]


def _verdict(plan: Plan, title: str) -> Verdict:
    precision = plan.precision if plan.fp8 == "none" else f"{plan.precision}+{plan.fp8}"
    head = f"{title}: {plain(plan.task)} in {plain(precision)}"
    fallback = plan.evidence is None
    reason = plain(plan.reason)
    if fallback:
        sentence = f"{head}, the fallback: {reason}" if reason else f"{head}, the fallback"
    else:
        sentence = f"{head}{_gain(plan.gain)}"
    return Verdict(
        sentence=sentence,
        reason="" if fallback else reason,
        task=plain(plan.task),
        rejected=tuple(
            Rejected(plain(r.precision), plain(r.cell), plain(r.status), plain(r.reason)) for r in plan.rejected
        ),
        caveats=tuple(plain(caveat) for caveat in plan.caveats),
    )


def _title(plan: Plan, blocks: Sequence[Block]) -> str:
    """The plan's device with its hardware: the block that holds the plan's survey, else the device's newest."""
    proof = plan.evidence.survey if plan.evidence else ""
    of_device = [block for block in blocks if block.device == plan.device]
    found = next((block for block in of_device if proof in block.surveys), None)
    newest = max(of_device, key=lambda block: block.started, default=None)
    block = found or newest
    return block.title if block else plain(plan.device)


def _gain(gain: Gain | None) -> str:
    if gain is None or not (math.isfinite(gain.low) and math.isfinite(gain.high)):
        return ""
    low, high = multiple(gain.low), multiple(gain.high)
    return f", {low} fp32" if low == high else f", {low} to {high} fp32"


def _was_measured(cell: Cell) -> bool:
    return cell.evidence == "measured" and cell.outcome.status is not Status.NOT_RUN


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"
