"""The essential cells by task and precision: what must be `ok` before a precision may be chosen.

The list is data. Each probe stands with its revision; evidence of another revision does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from amp_matrix import precision as precisions
from amp_matrix.environment import applies, differences, unmeasurable
from amp_matrix.plan import Gain, Task
from amp_matrix.survey import Cell, Environment, Outcome, Status, Survey, Tier, cell_id, conclude

if TYPE_CHECKING:
    from amp_matrix.matrix import Known

TASKS: tuple[Task, ...] = ("train", "infer")
MARGIN = 1.1
"""A gain counts for `prefer="speed"` where its lower bound is above this multiple of fp32's speed."""


class Essential(msgspec.Struct, frozen=True):
    """A cell's id, and the revision of its probe that counts (0: any)."""

    cell: str
    revision: int


class Blocker(msgspec.Struct, frozen=True):
    """What keeps a precision from being eligible: a cell ("" where no cell is asked for), its status, one sentence.

    `status` is the cell's, or `unknown` where nothing that counts was measured.
    """

    cell: str
    status: str
    reason: str


class _Row(msgspec.Struct, frozen=True):
    """A probe in the list. `only` narrows it to the precisions that end so ("-mixed"), or to one ("fp16-mixed")."""

    probe: str
    variants: tuple[str, ...] = ("base",)
    only: str = ""
    revision: int = 1


_PRODUCT = ("base", "exact", "transposed", "square", "k1000", "row")
_STEP = ("sgd", "adamw")

_INFER = (
    _Row("copy.roundtrip"),
    _Row("autocast.applies", ("base", "linear", "attention"), only="-mixed"),
    _Row("op.matmul", _PRODUCT),
    _Row("op.linear", _PRODUCT),
    _Row("op.embedding"),
    _Row("op.softmax"),
    _Row("op.layer_norm"),
    _Row("op.rms_norm"),
    _Row("op.gelu"),
    _Row("op.silu"),
    _Row("op.attention", ("base", "causal", "q1")),
    _Row("infer.mlp"),
    _Row("infer.transformer"),
)
_TRAIN = (
    _Row("op.cross_entropy"),
    _Row("op.mse"),
    _Row("grads.finite"),
    _Row("optim.step", _STEP),
    _Row("optim.clip"),
    _Row("scaler.lifecycle", _STEP, only="fp16-mixed"),
    _Row("optim.tiny_update", only="-true"),
    _Row("train.mlp"),
    _Row("train.transformer"),
)
_ROWS = {"infer": _INFER, "train": _INFER + _TRAIN}
_SPEED = {"train": _Row("speed.train_step"), "infer": _Row("speed.infer")}


@cache
def cells(task: Task, precision: str) -> tuple[Essential, ...]:
    """The essential cells of a task at a precision, in the order they are asked for.

    Empty where none are defined: an FP8 recipe, or a precision that does not exist.
    """
    if precision not in precisions.COMPUTES:
        return ()
    rows = (row for row in _ROWS[task] if precision.endswith(row.only))
    return tuple(Essential(cell_id(row.probe, v, precision), row.revision) for row in rows for v in row.variants)


def speed(task: Task, precision: str) -> Essential:
    """The cell whose measured gain over fp32 decides for `prefer="speed"`."""
    row = _SPEED[task]
    return Essential(cell_id(row.probe, "base", precision), row.revision)


def tier(cell: str) -> Tier:
    """`essential` where a cell's id stands in the list of any task at its precision, else `stress`."""
    return "essential" if cell in _revisions() else "stress"


def revision(cell: str) -> int:
    """The revision that counts of a cell in the list, else 0: any."""
    return _revisions().get(cell, 0)


@cache
def _revisions() -> dict[str, int]:
    # "train" asks for everything that "infer" asks for
    return {e.cell: e.revision for precision in precisions.COMPUTES for e in cells("train", precision)}


def required(task: Task, precision: str, needs: Sequence[str] = ()) -> tuple[Essential, ...]:
    """The essential cells, then those that the caller needs beyond them: `op.conv2d`, `op.conv2d[channels_last]`."""
    own = cells(task, precision)
    known = {e.cell for e in own}
    asked = dict.fromkeys(f"{need}@{precision}" for need in needs)
    return own + tuple(Essential(cell, revision(cell)) for cell in asked if cell not in known)


def first_blocker(
    known: Mapping[str, Known],
    precision: str,
    task: Task,
    now: Environment,
    *,
    needs: Sequence[str] = (),
    others: Sequence[Survey] = (),
) -> Blocker | None:
    """The first required cell that is not known to be `ok` here; None where the precision is eligible.

    `known` is what `matrix.select` gives for the identity of `now`. `others` are surveys of other environments; they
    never count, and only let the reason name what has changed since.
    """
    if not cells(task, precision):
        return Blocker("", "unknown", f"no essential cells are defined for {precision}")
    found = (blocker(known, e, task, now, others=others) for e in required(task, precision, needs))
    return next((b for b in found if b is not None), None)


def blocker(
    known: Mapping[str, Known],
    wanted: Essential,
    task: Task,
    now: Environment,
    *,
    others: Sequence[Survey] = (),
) -> Blocker | None:
    """Why one cell does not vouch for its precision, or None: it is `ok`, measured, and nothing has changed since."""
    cell = wanted.cell
    if (fact := known.get(cell)) is None:
        typo = _typo(cell, known, others)
        return Blocker(cell, "unknown", f"{cell} {_absence(cell, now, others)}{typo}; {_how(cell, now)}")
    if doubt := _doubt(fact, wanted, now):
        return Blocker(cell, "unknown", f"{cell} {doubt}")
    outcome = counted(fact.cell, task)
    if outcome.status is Status.OK:
        return None
    return Blocker(cell, str(outcome.status), f"{cell} {said(outcome)}{_elsewhere(fact, now)}")


def counted(cell: Cell, task: Task) -> Outcome:
    """The part of a cell's outcome that a task asks for: to infer, nothing after its `infer` stage."""
    stages = cell.outcome.stages
    last = max((i for i, stage in enumerate(stages) if stage.name == "infer"), default=None)
    return cell.outcome if task == "train" or last is None else conclude(stages[: last + 1])


def gain(cell: Cell) -> Gain | None:
    """The interval that a speed cell measured; None where it is not two finite, ordered, positive numbers."""
    numbers = next((s.numbers for s in cell.outcome.stages if s.name == "time"), {})
    low, high = numbers.get("gain_low", math.nan), numbers.get("gain_high", math.nan)
    return Gain(float(low), float(high)) if 0 < low <= high < math.inf else None


def pays(gain: Gain) -> bool | None:
    """Whether a gain counts; None where its interval is too wide to tell."""
    return True if gain.low > MARGIN else False if gain.high <= MARGIN else None


def said(outcome: Outcome) -> str:
    """An outcome in words, one line: `is inaccurate in backward: n is 8.1, over 3.0`."""
    status = "was not run" if outcome.status is Status.NOT_RUN else f"is {outcome.status}"
    where = f" in {outcome.stage}" if outcome.stage else ""
    reason = " ".join((outcome.reason or outcome.code).split())
    return f"{status}{where}: {reason}" if reason else f"{status}{where}"


def _doubt(fact: Known, wanted: Essential, now: Environment) -> str:
    """Why a known cell is no evidence for here and now, or ""."""
    cell = fact.cell
    if cell.evidence != "measured":
        return f"was only {cell.evidence}, never measured here; {_how(wanted.cell, now)}"
    if wanted.revision not in (0, cell.revision):
        older = f"revision {cell.revision} of its probe, and revision {wanted.revision} counts"
        return f"was measured by {older}; {_how(wanted.cell, now)}"
    if fact.environment.identity != now.identity:
        changed = differences(fact.environment.identity, now.identity)
        return f"was measured, but {_few(changed)}; {_how(wanted.cell, now)}"
    if changed := _rescoped(fact, wanted, now):
        return f"was measured under other settings: {_few(changed)}; set them as they were then"
    return ""


def _elsewhere(fact: Known, now: Environment) -> str:
    """The device that a cell was seen on, where that is another one of the same make."""
    index = fact.device.partition(":")[2]
    here = now.recorded.get("index", "") if index else ""
    return f" (on {fact.device})" if here not in ("", index) else ""


def _rescoped(fact: Known, wanted: Essential, now: Environment) -> tuple[str, ...]:
    """The scoped fields that differ and can change this cell's precision."""
    if fact.environment.scoped == now.scoped:
        return ()
    precision = precisions.parse(wanted.cell.rpartition("@")[2])
    then, here = (
        {f: v for f, v in sorted(scoped.items()) if applies(f, precision)}
        for scoped in (fact.environment.scoped, now.scoped)
    )
    return differences(then, here)


def _absence(cell: str, now: Environment, others: Sequence[Survey]) -> str:
    changed = min(_changes(cell, now, others), key=len, default=())
    return f"was measured, but {_few(changed)}" if changed else "was never measured here"


def _changes(cell: str, now: Environment, others: Sequence[Survey]) -> Iterator[tuple[str, ...]]:
    """For every survey of this kind of device that has the cell: what has changed since."""
    for survey in others:
        then = survey.environment.identity
        if then.get("device") == now.identity.get("device") and any(_ran(c, cell) for c in survey.cells):
            yield differences(then, now.identity)


def _ran(cell: Cell, wanted: str) -> bool:
    return cell.evidence == "measured" and cell.outcome.status is not Status.NOT_RUN and cell.id == wanted


def unseen(probe: str, known: Mapping[str, Known], others: Sequence[Survey]) -> bool:
    """Whether a probe and variant stand neither in the list nor in any of these surveys."""
    return probe not in _names(known, others)


def _names(known: Mapping[str, Known], others: Sequence[Survey]) -> dict[str, None]:
    """Every probe with its variant that is known of: `op.conv2d[channels_last]`."""
    ids = [*_revisions(), *known, *(cell.id for survey in others for cell in survey.cells)]
    return dict.fromkeys(name.partition("@")[0] for name in ids)


def _typo(cell: str, known: Mapping[str, Known], others: Sequence[Survey]) -> str:
    """What a probe that nothing knows may be meant to be."""
    probe, names = cell.partition("@")[0], tuple(_names(known, others))
    if probe in names or probe.startswith("speed."):
        return ""
    hint = precisions.nearest(probe, names)
    return f", and no survey here knows a probe of this name ({hint})" if hint.startswith("did") else ""


def _few(sentences: tuple[str, ...], most: int = 3) -> str:
    more = len(sentences) - most
    return ", ".join(sentences[:most]) + (f" and {more} more" if more > 0 else "")


def _how(cell: str, now: Environment) -> str:
    """What measures a cell here."""
    if calls := unmeasurable(now.identity):
        return f"amp-probe run cannot measure it under {', '.join(calls)}, which is set in this process alone: undo it"
    usual = tier(cell) == "essential" or cell.startswith("speed.")
    suite = "" if usual else " --suite full" if cell.startswith("opinfo.") else " --suite core"
    return f"run amp-probe run{suite} --device {now.identity.get('device', 'cpu')}"
