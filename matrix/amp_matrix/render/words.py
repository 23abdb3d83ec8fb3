"""How statuses, numbers and other people's text are written, the same in every form."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import NamedTuple

from amp_matrix.survey import Cell, Status, TensorError

LIMIT = 400
"""The longest line of untrusted text that is shown, in characters."""

_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # strings: titles, links
    r"|\x1b[ -/]*[0-~]?"
)


class Look(NamedTuple):
    """A status as people see it: an icon, its ASCII form, a word, one of at most 7 characters, and what it means."""

    icon: str
    ascii: str
    word: str
    short: str
    meaning: str


LOOKS: dict[Status | None, Look] = {
    Status.OK: Look("✓", "+", "ok", "ok", "ran in the precision asked for, within its limit"),
    Status.EMULATED: Look("◐", "e", "emulated", "emul.", "right, but slower than fp32 or emulated by a library"),
    Status.UNSUPPORTED: Look("–", "-", "unsupported", "unsup.", "the backend refuses, cleanly and by design"),
    Status.INERT: Look(
        "○", "o", "inert", "inert", "ran, but without the effect asked for (another dtype, or nothing moved)"
    ),
    Status.INACCURATE: Look("≠", "~", "inaccurate", "inacc.", "finite, but outside its limit"),
    Status.NONFINITE: Look("∞", "n", "nonfinite", "nonfin.", "NaN or Inf where the reference is finite"),
    Status.ERROR: Look("✗", "x", "error", "error", "an exception"),
    Status.TIMEOUT: Look("◷", "t", "timeout", "timeout", "did not finish in its time"),
    Status.CRASH: Look("†", "!", "crash", "crash", "the process died"),
    Status.NOT_RUN: Look("∅", "/", "not run", "not run", "no stage ran; unknown"),
    None: Look("◌", "s", "simulated", "simul.", "fake tensors on no device: the dtypes seen, and no status"),
}
"""Every status, the best first; None is a simulated cell."""

NOT_ASKED = Look("·", ".", "not asked", "", "")
"""A precision in which a probe has no cell."""

ORDER = tuple(LOOKS)
_DTYPES = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def key(status: Status | None) -> str:
    """A status as a word for programs; `simulated` where there is none."""
    return "simulated" if status is None else status.value


def present(cells: list[Cell]) -> list[Status | None]:
    """The statuses that some cells have, the best first."""
    found = {cell.outcome.status for cell in cells}
    return [status for status in ORDER if status in found]


def counts(cells: list[Cell]) -> str:
    """`780 ok, 12 nonfinite`; "no cells" for none."""
    tally = dict.fromkeys(ORDER, 0)
    for cell in cells:
        tally[cell.outcome.status] += 1
    return ", ".join(f"{n} {LOOKS[status].word}" for status, n in tally.items() if n) or "no cells"


def plain(text: str, limit: int = LIMIT) -> str:
    """Untrusted text as one visible line: no terminal sequences, control, bidi, zero-width or surrogate characters."""
    if not text.isprintable():
        text = _ANSI.sub("", text[: limit * 20])
        text = " ".join("".join(c if c.isprintable() else " " * c.isspace() for c in text).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def eps(value: float) -> str:
    """An error in eps, with three significant digits: `0.41`, `1.96e+04`, `nan`."""
    return f"{value:.3g}"


def seconds(value: float) -> str:
    """A duration: `3.2 ms`, `1.4 s`, `12 min`."""
    if not math.isfinite(value):
        return "unknown"
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if value < 120 else f"{value / 60:.3g} min"


def multiple(value: float) -> str:
    """A multiple of fp32's speed: `2.4x`."""
    return f"{value:.3g}x" if value >= 10 else f"{value:.1g}x" if 0 < value < 0.095 else f"{value:.1f}x"


def gain(cell: Cell, short: bool = False) -> str:
    """The interval of a timing cell's speed in multiples of fp32's: `1.5x to 1.9x`, or `1.5-1.9x`; "" for others."""
    numbers = next((stage.numbers for stage in cell.outcome.stages if "gain" in stage.numbers), {})
    bounds = [numbers.get(name, math.nan) for name in ("gain_low", "gain_high")]
    if not all(map(math.isfinite, bounds)):
        bounds = [numbers.get("gain", math.nan)]
    if not all(map(math.isfinite, bounds)):
        return ""
    low, high = (multiple(bounds[0]), multiple(bounds[-1]))
    return low if low == high else f"{low[:-1]}-{high}" if short else f"{low} to {high}"


def face(cell: Cell, short: bool = False) -> str:
    """What a cell says beside its icon: a speed that is ok by its interval, dtypes where there is no status.

    The short form leaves the status of a speed to its icon.
    """
    status, speed = cell.outcome.status, gain(cell, short)
    look = LOOKS[status]
    if status is None:
        return seen(cell) or look.word
    if speed and (status is Status.OK or short):
        return speed
    return " ".join(filter(None, (look.short if short else look.word, speed)))


def seen(cell: Cell) -> str:
    """The dtypes that came out in a cell, the most frequent first: `bf16/fp32`, `4 dtypes`; "" for none."""
    tally = Counter(dtype for stage in cell.outcome.stages for dtype in stage.dtypes.values())
    names = [_DTYPES.get(dtype, plain(dtype, 16)) for dtype, _ in tally.most_common()]
    return "/".join(names) if len(names) <= 3 else f"{len(names)} dtypes"


def observed(cell: Cell) -> list[tuple[str, str]]:
    """(stage, dtypes) of each stage that saw some: `float32`, `bfloat16 from addmm, bmm; float32 from acos`."""
    found = []
    for stage in cell.outcome.stages:
        tensors: dict[str, list[str]] = {}
        for name, dtype in stage.dtypes.items():
            tensors.setdefault(plain(dtype), []).append(plain(name))
        if tensors:
            found.append((plain(stage.name), "; ".join(f"{d} from {', '.join(t)}" for d, t in tensors.items())))
    return found


def errors(cell: Cell) -> str:
    """How far the tensor that made a cell inaccurate is off, in eps: `n 390 of 1.5, slice 576 of 2`; "" for others.

    It is the tensor that the cell's reason names, else the one furthest over its limit in the stage to blame.
    """
    outcome = cell.outcome
    if outcome.status is not Status.INACCURATE:
        return ""
    found = [error for stage in outcome.stages if stage.name == outcome.stage for error in stage.errors]
    named = [error for error in found if outcome.reason.startswith(f"{error.name}:")]
    error = max(named or found, key=_excess, default=None)
    if error is None:
        return ""
    pairs = [("n", error.n, error.n_limit), ("slice", error.s, error.s_limit)]
    return ", ".join(f"{name} {eps(value)} of {eps(limit)}" for name, value, limit in pairs if limit > 0)


def _excess(error: TensorError) -> float:
    """The larger ratio of an error to its limit; NaN counts as the largest of all."""
    ratios = [value / limit for value, limit in ((error.n, error.n_limit), (error.s, error.s_limit)) if limit > 0]
    return math.inf if any(map(math.isnan, ratios)) else max(ratios, default=0.0)


def number_of(count: int, noun: str) -> str:
    """`1 cell`, `812 cells`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
