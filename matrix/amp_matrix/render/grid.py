"""Surveys as blocks of rows and columns: a block a device and environment, a row a probe and variant."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from amp_matrix import codec
from amp_matrix.matrix import Known, select
from amp_matrix.precision import COMPUTES, RECIPES
from amp_matrix.render.words import LOOKS, counts, number_of, plain
from amp_matrix.survey import SEVERITY, Cell, Environment, Status, Survey

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

    @property
    def line(self) -> str:
        """`unsupported in all 72 cells: TF32 is a format of CUDA devices`."""
        where = f"in all {self.count} cells" if self.count > 1 else "in its 1 cell"
        return ": ".join(filter(None, (f"{LOOKS[self.status].word} {where}", self.reason)))


@dataclass(frozen=True)
class Block:
    """One device in one environment: the cells that count there, and the surveys that they come from.

    `whole` is the block that this one shows a part of: itself, but for views that the caller filtered.
    """

    device: str
    environment: Environment
    surveys: tuple[str, ...]
    started: str
    families: tuple[Family, ...]
    part_of: Block | None = None

    @property
    def whole(self) -> Block:
        """The block with every cell that was surveyed, whatever this one leaves out."""
        return self.part_of or self

    @cached_property
    def facts(self) -> tuple[str, ...]:
        """`Intel Xeon`, `AVX512`, `torch 2.13.0`."""
        return tuple(hardware(self.environment))

    @cached_property
    def title(self) -> str:
        """`cpu (Intel Xeon, AVX512, torch 2.13.0)`."""
        return _titled(self.device, self.facts)

    @cached_property
    def tally(self) -> str:
        """`812 cells: 800 ok, 12 error`; of a part `12 of 812 cells: 12 error`, or `none of 812 cells`."""
        total = number_of(len(self.whole.cells), "cell")
        if len(self.cells) == len(self.whole.cells):
            return f"{total}: {counts(self.cells)}"
        return f"{len(self.cells)} of {total}: {counts(self.cells)}" if self.cells else f"none of {total}"

    @cached_property
    def cells(self) -> list[Cell]:
        """Every cell that counts."""
        return [cell for family in self.families for cell in family.cells]

    @cached_property
    def precisions(self) -> tuple[str, ...]:
        """Every precision that has a cell, in the order of the axes."""
        return tuple(sorted({cell.precision for cell in self.cells}, key=precision_order))

    @cached_property
    def uniform(self) -> tuple[Uniform, ...]:
        """The precisions that are `unsupported` or `not_run` in every cell."""
        if self.part_of is not None:
            return tuple(u for u in self.part_of.uniform if u.precision in self.precisions)
        found = (_uniform(p, [c for c in self.cells if c.precision == p]) for p in self.precisions)
        return tuple(u for u in found if u is not None)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The precisions that need a column of their own."""
        left_out = {u.precision for u in self.uniform}
        return tuple(p for p in self.precisions if p not in left_out)

    @cached_property
    def failing(self) -> tuple[Cell, ...]:
        """The cells that are not ok and in no uniform column: the essential first, then the worst."""
        found = [c for c in self.cells if c.outcome.status not in (Status.OK, None) and c.precision in self.columns]
        order = sorted(found, key=lambda c: (c.tier != "essential", SEVERITY.index(c.outcome.status or Status.OK)))
        return tuple(order)

    def asked(self, probe: str, variant: str, precision: str) -> bool:
        """Whether a cell was surveyed, shown here or not."""
        return (probe, variant, precision) in self.whole._asked

    @cached_property
    def _asked(self) -> frozenset[tuple[str, str, str]]:
        return frozenset((c.probe, c.variant, c.precision) for c in self.cells)


def blocks(surveys: Iterable[Survey]) -> tuple[Block, ...]:
    """Group surveys by device and environment identity; within a block the cells are those that `select` counts."""
    made = [_block(group) for group in _groups(surveys).values()]
    return tuple(sorted(sorted(made, key=lambda b: b.started, reverse=True), key=lambda b: _natural(b.device)))


def parts(surveys: Iterable[Survey], whole: Sequence[Block]) -> tuple[Block, ...]:
    """The blocks with those of their cells alone that some filtered surveys hold; a block of none of them is left out.

    A cell that does not count in the whole block counts in none of its parts: a filter must not bring back evidence
    that newer evidence replaced.
    """
    groups = _groups(surveys)
    return tuple(_part(block, groups[place]) for block in whole if (place := _place(block)) in groups)


def short_names(blocks: Iterable[Block]) -> dict[str, str]:
    """A name for each block's title: the device, with the facts that tell it apart where there are several of it."""
    by_device: dict[str, list[Block]] = {}
    for block in blocks:
        by_device.setdefault(block.device, []).append(block)
    return {block.title: _short_name(block, same) for same in by_device.values() for block in same}


def hardware(environment: Environment) -> list[str]:
    """What names an environment to people: the hardware, the CPU's capability or macOS, torch's version.

    A simulated one has no hardware, and says so.
    """
    facts = {name: plain(value, 60) for name, value in {**environment.recorded, **environment.identity}.items()}
    name = next((facts[field] for field in ("name", "chip", "model") if facts.get(field)), "")
    macos, torch = (f"{word} {facts[field]}" if facts.get(field) else "" for word, field in _VERSIONS)
    simulated = plain(environment.recorded.get("simulated", ""), 60) if "simulated" in environment.identity else ""
    return [part for part in (name, facts.get("cpu_capability", ""), macos, torch, simulated) if part]


def _short_name(block: Block, same: Sequence[Block]) -> str:
    """A device's name among the blocks of the same device; the full title where no fact tells two apart."""
    if len(same) == 1:
        return plain(block.device)
    shared = set.intersection(*(set(b.facts) for b in same))
    name = _titled(block.device, [fact for fact in block.facts if fact not in shared])
    others = [_titled(b.device, [f for f in b.facts if f not in shared]) for b in same if b is not block]
    return block.title if name in others else name


def _titled(device: str, facts: Sequence[str]) -> str:
    return f"{plain(device)} ({', '.join(facts)})" if facts else plain(device)


def _place(of: Block | Survey) -> tuple[object, ...]:
    return (of.device, *sorted(of.environment.identity.items()))


def _groups(surveys: Iterable[Survey]) -> dict[tuple[object, ...], list[Survey]]:
    groups: dict[tuple[object, ...], list[Survey]] = {}
    for survey in surveys:
        groups.setdefault(_place(survey), []).append(survey)
    return groups


def _part(block: Block, group: Sequence[Survey]) -> Block:
    kept = select(group, block.environment.identity)
    cells = {known.cell.id: known.cell for known in kept.values()}

    def counts(known: Known) -> bool:
        found = cells.get(known.cell.id)
        return found is known.cell or found == known.cell

    families = []
    for family in block.families:
        rows = [replace(row, cells={p: k for p, k in row.cells.items() if counts(k)}) for row in family.rows]
        if rows := [row for row in rows if row.cells]:
            families.append(Family(family.name, tuple(rows)))
    return replace(block, families=tuple(families), part_of=block)


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


def precision_order(text: str) -> tuple[int, int, str]:
    """A sort key for precisions: along the axes."""
    compute, _, recipe = text.partition("+")
    return _index(compute, COMPUTES), _index(recipe or "none", RECIPES), text


def _index(word: str, known: Sequence[str]) -> int:
    return known.index(word) if word in known else len(known)


def _uniform(precision: str, cells: Sequence[Cell]) -> Uniform | None:
    statuses = {cell.outcome.status for cell in cells}
    status = next(iter(statuses))
    if len(statuses) > 1 or status not in (Status.UNSUPPORTED, Status.NOT_RUN):
        return None
    reasons = Counter(plain(cell.outcome.reason) for cell in cells)
    reason = reasons.most_common(1)[0][0]
    if len(reasons) > 1:
        reason += f" (and {number_of(len(reasons) - 1, 'other reason')})"
    return Uniform(precision, status, reason, len(cells))
