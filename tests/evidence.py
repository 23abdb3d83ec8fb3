"""Surveys made up for tests of the policy and the gate: everything works, but for what a test changes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from amp_matrix import cell_id, essential
from amp_matrix.matrix import Known, select
from amp_matrix.precision import COMPUTES
from amp_matrix.survey import Cell, Environment, Outcome, Stage, Status, Survey, conclude, not_run

NOW = Environment(
    identity={"device": "cpu", "torch": "2.13.0+cpu"},
    scoped={"float32_matmul_precision": "highest", "allow_fp16_accumulation": "no"},
    recorded={"python": "3.11.7"},
)
STARTED = "2026-01-31T08:00:00Z"
GAINS = {"tf32": 1.0, "bf16-mixed": 1.5, "fp16-mixed": 0.9, "bf16-true": 2.0, "fp16-true": 0.7}
"""The lower bound of each precision's gain; the upper is a tenth more."""


def cell(name: str, *stages: Stage, revision: int | None = None, evidence: str = "measured") -> Cell:
    """A cell by its id; without stages it is `ok`."""
    outcome = conclude(stages or (Stage("forward"),))
    return made(name, outcome, revision=revision, evidence=evidence)


def made(name: str, outcome: Outcome, *, revision: int | None = None, evidence: str = "measured") -> Cell:
    """A cell by its id with an outcome."""
    parts = cell_id.parse(name)
    return Cell(
        probe=parts.probe,
        precision=str(parts.precision),
        variant=parts.variant,
        tier=essential.tier(name),
        revision=1 if revision is None else revision,
        outcome=outcome,
        evidence=evidence,  # type: ignore[arg-type]
    )


def failing(name: str, status: Status, reason: str = "seen") -> Cell:
    """A cell that fails, or was not run."""
    if status is Status.NOT_RUN:
        return made(name, not_run(reason, "filtered"))
    return cell(name, Stage("forward", status, reason=reason))


def timed(name: str, low: float, high: float) -> Cell:
    """A speed cell that measured a gain."""
    return cell(name, Stage("time", numbers={"gain": (low + high) / 2, "gain_low": low, "gain_high": high}))


def working(gains: Mapping[str, float] = GAINS) -> dict[str, Cell]:
    """Every essential cell `ok` at every precision, and the speed of each."""
    cells = {e.cell: cell(e.cell) for p in COMPUTES for e in essential.cells("train", p)}
    for precision, low in gains.items():
        for name in (f"speed.train_step@{precision}", f"speed.infer@{precision}"):
            cells[name] = timed(name, low, round(low * 1.1, 3))
    return cells


def survey(*cells: Cell, environment: Environment = NOW, started: str = STARTED, device: str = "cpu") -> Survey:
    """A survey of these cells."""
    return Survey(
        tool="test",
        device=device,
        suite="quick",
        started=started,
        seconds=1.0,
        environment=environment,
        cells=cells,
    )


def known(*changes: Cell, without: tuple[str, ...] = (), gains: Mapping[str, float] = GAINS) -> dict[str, Known]:
    """What is known where everything works but for these changes."""
    cells = working(gains) | {c.id: c for c in changes}
    return select([survey(*(c for name, c in cells.items() if name not in without))], NOW.identity)


def elsewhere(**identity: str) -> Environment:
    """The environment of NOW with another identity."""
    return msgspec.structs.replace(NOW, identity=NOW.identity | identity)
