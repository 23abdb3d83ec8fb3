"""The sentences that come first in every form: what to use, what was rejected and why, what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from amp_matrix.plan import Gain, Plan, Rejection
from amp_matrix.render.grid import Block
from amp_matrix.render.words import multiple, plain
from amp_matrix.survey import Cell, Status

KINDS = ("cpu", "cuda", "mps", "xpu")
SHOWN = 8
"""At most this many devices are named in the line that says what was measured."""


@dataclass(frozen=True)
class Rejected:
    """A precision that was not chosen: the cell that blocked it, that cell's status, and the reason beyond these."""

    precision: str
    cell: str
    status: str
    reason: str

    @property
    def line(self) -> str:
        """Cell, status and reason as one line."""
        return ": ".join(filter(None, (f"{self.cell} {self.status}".strip(), self.reason)))


@dataclass(frozen=True)
class Verdict:
    """A plan as people read it. `sentence` names device, hardware (both in `title`), task and precision."""

    title: str
    sentence: str
    reason: str
    task: str
    rejected: tuple[Rejected, ...]
    caveats: tuple[str, ...]


def verdicts(plans: Iterable[Plan], blocks: Sequence[Block]) -> tuple[Verdict, ...]:
    """One verdict a plan, in the order given; plans that read the same are said once."""
    return tuple(dict.fromkeys(_verdict(plan, _title(plan, blocks)) for plan in plans))


def measured(blocks: Sequence[Block]) -> str:
    """`Measured: cpu (...), 812 cells, 2026-12-01. Not measured: cuda, mps, xpu.`"""
    counted = [(block, sum(_was_measured(cell) for cell in block.cells)) for block in blocks]
    seen = [f"{block.title}, {number_of_cells(n)}, {plain(block.started)[:10]}" for block, n in counted if n]
    kinds = {kind(block) for block, n in counted if n}
    missing = ", ".join(k for k in KINDS if k not in kinds)
    more = [f"and {len(seen) - SHOWN} more"] if len(seen) > SHOWN else []
    first = f"Measured: {'; '.join(seen[:SHOWN] + more)}." if seen else "Measured: nothing."
    return f"{first} Not measured: {missing}." if missing else first


def alike(rejected: Iterable[Rejected]) -> list[Rejected]:
    """Rejections with those joined that differ in the precision alone: `tf32, bf16-mixed`, and a cell without it."""
    groups: dict[tuple[str, str, str], list[Rejected]] = {}
    for r in rejected:
        groups.setdefault((r.cell.partition("@")[0], r.status, r.reason), []).append(r)
    return [
        same[0] if len(same) == 1 else Rejected(", ".join(r.precision for r in same), *group)
        for group, same in groups.items()
    ]


def kind(block: Block) -> str:
    """The kind of a block's device: `cuda` for `cuda:0`."""
    return block.device.partition(":")[0]


def _verdict(plan: Plan, title: str) -> Verdict:
    precision = plan.precision if plan.fp8 == "none" else f"{plan.precision}+{plan.fp8}"
    head = f"{title}: {plain(plan.task)} in {plain(precision)}"
    fallback = plan.evidence is None
    reason = plain(plan.reason)
    rejected = tuple(map(_rejected, plan.rejected))
    why = f", the fallback{f': {reason}' if reason else ''}" if fallback else _gain(plan.gain)
    return Verdict(
        title=title,
        sentence=f"{head}{why}{_also(rejected)}",
        reason="" if fallback else reason,
        task=plain(plan.task),
        rejected=rejected,
        caveats=tuple(plain(caveat) for caveat in plan.caveats),
    )


def _rejected(rejection: Rejection) -> Rejected:
    """A rejection whose reason does not say the cell and the status again."""
    cell, status, reason = plain(rejection.cell), plain(rejection.status), plain(rejection.reason)
    for said in filter(None, (cell, f"is {status}", status)):
        reason = reason.removeprefix(said).lstrip(" :")
    return Rejected(plain(rejection.precision), cell, status, reason)


def _also(rejected: Sequence[Rejected]) -> str:
    """`; fp16-mixed works too`, of the precisions that were eligible and not chosen."""
    names = [r.precision for r in rejected if r.status == "ok" and r.precision != "fp32"]
    return f"; {', '.join(names)} {'works' if len(names) == 1 else 'work'} too" if names else ""


def _title(plan: Plan, blocks: Sequence[Block]) -> str:
    """The plan's device, with its hardware where it is certain which block the plan speaks of."""
    of_device = [block for block in blocks if block.device == plan.device]
    proof = plan.evidence
    vouching = [block for block in of_device if proof and proof.survey in block.surveys]
    dated = [block for block in of_device if proof and proof.started == block.started]
    likely = vouching or dated or of_device
    return likely[0].title if len(likely) == 1 else plain(plan.device)


def _gain(gain: Gain | None) -> str:
    if gain is None or not (math.isfinite(gain.low) and math.isfinite(gain.high)):
        return ""
    low, high = multiple(gain.low), multiple(gain.high)
    return f", {low} fp32" if low == high else f", {low} to {high} fp32"


def _was_measured(cell: Cell) -> bool:
    return cell.evidence == "measured" and cell.outcome.status is not Status.NOT_RUN


def number_of_cells(count: int) -> str:
    """`1 cell`, `812 cells`."""
    return "1 cell" if count == 1 else f"{count} cells"
