"""What the main process asks of a worker. Light on purpose: the main process never imports torch."""

from __future__ import annotations

from typing import Literal

import msgspec

from amp_matrix.survey import Cell, Evidence, Outcome, Tier, cell_id

Suite = Literal["quick", "core", "full"]
SUITES: tuple[Suite, ...] = ("quick", "core", "full")
SIMULATED = ("mps", "cuda", "xpu")
"""The kinds of device whose autocast policy can be told without one."""


class Spec(msgspec.Struct, frozen=True):
    """One cell to run on a device."""

    probe: str
    variant: str
    precision: str
    tier: Tier
    revision: int
    timeout: float
    alone: bool = False

    @property
    def id(self) -> str:
        """The cell's id."""
        return cell_id(self.probe, self.variant, self.precision)

    def cell(self, outcome: Outcome, evidence: Evidence = "measured") -> Cell:
        """The cell that this was to be, with what happened in it."""
        return Cell(
            probe=self.probe,
            variant=self.variant,
            precision=self.precision,
            tier=self.tier,
            revision=self.revision,
            evidence=evidence,
            outcome=outcome,
        )


class Setting(msgspec.Struct, frozen=True):
    """What a worker is opened with: its device, and modules that declare more PROBES than those that ship."""

    device: str
    modules: tuple[str, ...] = ()


class ListCells(msgspec.Struct, frozen=True, tag="list"):
    """Asks for the plan: the specs of the cells that a suite, globs and precisions select."""

    suite: Suite = "core"
    globs: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    timeout: float | None = None


class FindDevices(msgspec.Struct, frozen=True, tag="devices"):
    """Asks which of these devices are here; none means all."""

    asked: tuple[str, ...] = ()


class Capture(msgspec.Struct, frozen=True, tag="environment"):
    """Asks for the environment of the worker's device."""


class RunCell(msgspec.Struct, frozen=True, tag="cell"):
    """Asks for one cell's outcome."""

    spec: Spec


class Simulate(msgspec.Struct, frozen=True, tag="simulate"):
    """Asks for autocast's policy on a kind of device that is not here, in one mixed precision."""

    kind: str
    precision: str


class CaptureSimulated(msgspec.Struct, frozen=True, tag="simulated environment"):
    """Asks for the environment that simulating a kind of device has."""

    kind: str


Request = ListCells | FindDevices | Capture | RunCell | Simulate | CaptureSimulated


class Absent(msgspec.Struct, frozen=True):
    """A device that was asked for and is not here, and why."""

    device: str
    reason: str


class Resolved(msgspec.Struct, frozen=True):
    """The devices that are here, by torch's names, and those that are not."""

    present: tuple[str, ...]
    absent: tuple[Absent, ...] = ()
