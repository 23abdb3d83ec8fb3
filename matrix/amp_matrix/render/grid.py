"""Surveys as blocks of rows and columns: a block a device and environment, a row a probe and variant."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from amp_matrix import codec
from amp_matrix.matrix import Known, select
from amp_matrix.precision import COMPUTES, RECIPES
from amp_matrix.render.words import plain
from amp_matrix.survey import Cell, Environment, Status, Survey

_FAMILIES = ("copy", "autocast", "op", "opinfo", "grads", "scaler", "optim", "infer", "train", "fp8", "dist", "speed")
_VERSIONS = (("macOS", "macos"), ("torch", "torch"))


@dataclass(frozen=True)
class Row:
    """One probe in one variant, with its cells by precision."""

    probe: str
    variant: str
    cells: dict[str, Known]

    @property
    def label(self) -> str:
        """The probe without its family, and the variant: `softmax [large]`."""
        name = self.probe.partition(".")[2] or self.probe
        return name if self.variant == "base" else f"{name} [{self.variant}]"


@dataclass(frozen=True)
class Family:
    """The rows of the probes that share their first word."""

    name: str
    rows: tuple[Row, ...]

    @property
    def cells(self) -> list[Cell]:
        """Every cell of the family."""
        return [known.cell for row in self.rows for known in row.cells.values()]


@dataclass(frozen=True)
class Uniform:
    """A precision that came out the same in every cell, which one line says better than a column."""

    precision: str
    status: Status
    reason: str
    count: int


@dataclass(frozen=True)
class Block:
    """One device in one environment: the cells that count there, and the surveys that they come from."""

    device: str
    environment: Environment
    surveys: tuple[str, ...]
    started: str
    families: tuple[Family, ...]

    @cached_property
    def title(self) -> str:
        """`cpu (Intel Xeon, AVX512, torch 2.13.0)`."""
        facts = ", ".join(hardware(self.environment))
        return f"{plain(self.device)} ({facts})" if facts else plain(self.device)

    @cached_property
    def cells(self) -> list[Cell]:
        """Every cell that counts."""
        return [cell for family in self.families for cell in family.cells]

    @cached_property
    def precisions(self) -> tuple[str, ...]:
        """Every precision that has a cell, in the order of the axes."""
        return tuple(sorted({cell.precision for cell in self.cells}, key=_precision_order))

    @cached_property
    def uniform(self) -> tuple[Uniform, ...]:
        """The precisions that are `unsupported` or `not_run` in every cell."""
        found = (_uniform(p, [c for c in self.cells if c.precision == p]) for p in self.precisions)
        return tuple(u for u in found if u is not None)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The precisions that need a column of their own."""
        left_out = {u.precision for u in self.uniform}
        return tuple(p for p in self.precisions if p not in left_out)


def blocks(surveys: Iterable[Survey]) -> tuple[Block, ...]:
    """Group surveys by device and environment identity; within a block the cells are those that `select` counts."""
    groups: dict[tuple[object, ...], list[Survey]] = {}
    for survey in surveys:
        groups.setdefault((survey.device, *sorted(survey.environment.identity.items())), []).append(survey)
    made = [_block(group) for group in groups.values()]
    return tuple(sorted(sorted(made, key=lambda b: b.started, reverse=True), key=lambda b: _natural(b.device)))


def hardware(environment: Environment) -> list[str]:
    """What names an environment to people: the hardware, the CPU's capability or macOS, torch's version.

    A simulated one has no hardware, and says so.
    """
    facts = {name: plain(value, 60) for name, value in {**environment.recorded, **environment.identity}.items()}
    name = next((facts[field] for field in ("name", "chip", "model") if facts.get(field)), "")
    macos, torch = (f"{word} {facts[field]}" if facts.get(field) else "" for word, field in _VERSIONS)
    simulated = plain(environment.recorded.get("simulated", ""), 60) if "simulated" in environment.identity else ""
    return [part for part in (name, facts.get("cpu_capability", ""), macos, torch, simulated) if part]


def _block(group: Sequence[Survey]) -> Block:
    newest = max(group, key=lambda survey: survey.started)
    known = select(group, newest.environment.identity)
    rows: dict[tuple[str, str], dict[str, Known]] = {}
    for found in known.values():
        rows.setdefault((found.cell.probe, found.cell.variant), {})[found.cell.precision] = found
    return Block(
        device=newest.device,
        environment=newest.environment,
        surveys=tuple(sorted({codec.survey_id(survey) for survey in group})),
        started=newest.started,
        families=_families(Row(probe, variant, cells) for (probe, variant), cells in rows.items()),
    )


def _families(rows: Iterable[Row]) -> tuple[Family, ...]:
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row.probe.partition(".")[0], []).append(row)
    order = sorted(by_name, key=lambda name: (_index(name, _FAMILIES), name))
    return tuple(Family(name, tuple(sorted(by_name[name], key=_row_order))) for name in order)


def _row_order(row: Row) -> tuple[object, ...]:
    return (_natural(row.probe), row.variant != "base", _natural(row.variant))


def _natural(text: str) -> tuple[tuple[int, str], ...]:
    """A sort key by which `cuda:2` comes before `cuda:10`."""
    return tuple((int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d{1,9})", text))


def _precision_order(text: str) -> tuple[int, int, str]:
    compute, _, recipe = text.partition("+")
    return _index(compute, COMPUTES), _index(recipe or "none", RECIPES), text


def _index(word: str, known: Sequence[str]) -> int:
    return known.index(word) if word in known else len(known)


def _uniform(precision: str, cells: Sequence[Cell]) -> Uniform | None:
    statuses = {cell.outcome.status for cell in cells}
    status = next(iter(statuses))
    if len(statuses) > 1 or status not in (Status.UNSUPPORTED, Status.NOT_RUN):
        return None
    reason = Counter(plain(cell.outcome.reason) for cell in cells).most_common(1)[0][0]
    return Uniform(precision, status, reason, len(cells))
