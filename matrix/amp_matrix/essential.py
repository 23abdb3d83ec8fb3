"""The essential cells by task and precision: what must be `ok` before a precision may be chosen.

The list is data. Each probe stands with its revision; evidence of another revision does not count.
"""

from __future__ import annotations

from functools import cache

import msgspec

from amp_matrix import precision as precisions
from amp_matrix.plan import Task
from amp_matrix.survey import Tier, cell_id

TASKS: tuple[Task, ...] = ("train", "infer")


class Essential(msgspec.Struct, frozen=True):
    """A cell's id, and the revision of its probe that counts (0: any)."""

    cell: str
    revision: int


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
    return "essential" if cell in _essential_ids() else "stress"


@cache
def _essential_ids() -> frozenset[str]:
    # "train" asks for everything that "infer" asks for
    return frozenset(e.cell for precision in precisions.COMPUTES for e in cells("train", precision))
