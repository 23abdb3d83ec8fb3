"""The sentences that come first in every form: what to use, what was rejected and why, what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from amp_matrix.kinds import KINDS
from amp_matrix.plan import Gain, Plan, Rejection
from amp_matrix.render.grid import Block
from amp_matrix.render.words import multiple, number_of, plain
from amp_matrix.survey import Cell, Status

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
        """Cell, status and reason as one line, in the words of the plan's own reason."""
        if self.status == "ok" or self.reason.startswith("eligible"):
            return self.reason
        if self.status == "unknown" or self.reason.startswith("was "):
            return f"{self.cell} {self.reason}".strip()
        how = f" {self.reason}" if self.reason.startswith("in ") else f": {self.reason}" if self.reason else ""
        return f"{self.cell} is {self.status}{how}"


@dataclass(frozen=True)
class Verdict:
    """A plan as people read it. `title` names device and hardware; `choice` says task, precision and gain."""

    title: str
    choice: str
    reason: str
    task: str
    rejected: tuple[Rejected, ...]
    caveats: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The verdict in one line: `cpu (Intel Xeon, torch 2.13.0): train in bf16-mixed, 2.1x to 2.4x fp32`."""
        return f"{self.title}: {self.choice}"


def verdicts(plans: Iterable[Plan], blocks: Sequence[Block]) -> tuple[Verdict, ...]:
    """One verdict a plan, in the order given; plans that read the same are said once."""
    return tuple(dict.fromkeys(_verdict(plan, _title(plan, blocks)) for plan in plans))


def measured(blocks: Sequence[Block], names: Mapping[str, str] | None = None) -> str:
    """`Measured: cpu (...), 812 cells, 2026-12-01. Not measured: cuda, mps, xpu.` Names stand for the titles."""
    titles = names or {}
    counted = [(block, sum(_was_measured(cell) for cell in block.cells)) for block in blocks]
    seen = [
        f"{titles.get(block.title, block.title)}, {number_of(n, 'cell')}, {plain(block.started)[:10]}"
        for block, n in counted
        if n
    ]
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
    head = f"{plain(plan.task)} in {plain(precision)}"
    fallback = plan.evidence is None
    reason = plain(plan.reason)
    rejected = tuple(map(_rejected, plan.rejected))
    why = f", the fallback{f': {reason}' if reason else ''}" if fallback else _gain(plan.gain)
    return Verdict(
        title=title,
        choice=f"{head}{why}{_also(plan.rejected)}",
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


def _also(rejected: Sequence[Rejection]) -> str:
    """`; fp16-mixed works too (0.8x to 0.9x fp32)`, of the precisions that were eligible and not chosen."""
    eligible = [r for r in rejected if r.status == "ok" and r.precision != "fp32"]
    speeds = [_gain(r.gain).removeprefix(", ") for r in eligible]
    names = [
        f"{plain(r.precision)} ({speed})" if speed else plain(r.precision)
        for r, speed in zip(eligible, speeds, strict=True)
    ]
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
    about = "about " if gain.wide else ""
    return f", {low} fp32" if low == high else f", {about}{low} to {high} fp32"


def _was_measured(cell: Cell) -> bool:
    return cell.evidence == "measured" and cell.outcome.status is not Status.NOT_RUN
