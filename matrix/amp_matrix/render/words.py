"""How statuses, numbers and other people's text are written, the same in every form."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from amp_matrix.survey import Cell, Status

LIMIT = 400
"""The longest line of untrusted text that is shown, in characters."""

_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # strings: titles, links
    r"|\x1b[ -/]*[0-~]?"
)


class Look(NamedTuple):
    """A status as people see it: an icon, its ASCII form, a word, a short word (7 characters), and what it means."""

    icon: str
    ascii: str
    word: str
    short: str
    meaning: str


LOOKS: dict[Status | None, Look] = {
    Status.OK: Look("✓", "+", "ok", "ok", "ran in the precision asked for, within its limit"),
    Status.EMULATED: Look("◐", "e", "emulated", "emul.", "right, but slower than fp32 or emulated by a library"),
    Status.UNSUPPORTED: Look("–", "-", "unsupported", "unsupp.", "the backend refuses, cleanly and by design"),
    Status.INERT: Look("○", "o", "inert", "inert", "ran, but not in the precision asked for"),
    Status.INACCURATE: Look("≠", "~", "inaccurate", "inaccur", "finite, but outside its limit"),
    Status.NONFINITE: Look("∞", "n", "nonfinite", "nonfin.", "NaN or Inf where the reference is finite"),
    Status.ERROR: Look("✗", "x", "error", "error", "an exception"),
    Status.TIMEOUT: Look("◷", "t", "timeout", "timeout", "did not finish in its time"),
    Status.CRASH: Look("†", "!", "crash", "crash", "the process died"),
    Status.NOT_RUN: Look("·", ".", "not run", "not run", "no stage ran; unknown"),
    None: Look("◌", "s", "simulated", "simul.", "fake tensors on no device; no status"),
}
"""Every status, the best first; None is a simulated cell."""

ORDER = tuple(LOOKS)


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
    return f"{value:.3g}x" if value >= 10 else f"{value:.1f}x"


def gain(cell: Cell) -> str:
    """The speed that a timing cell measured, as a multiple of fp32's; "" for other cells."""
    found = [s.numbers["gain"] for s in cell.outcome.stages if "gain" in s.numbers]
    return multiple(found[0]) if found and math.isfinite(found[0]) else ""


def worst_error(cell: Cell) -> tuple[str, str]:
    """The tensor nearest to (or furthest over) its limit, as (error, limit) in eps; empty where nothing was judged."""
    pairs = [
        pair
        for stage in cell.outcome.stages
        for error in stage.errors
        for pair in ((error.n, error.n_limit), (error.s, error.s_limit))
        if pair[1] > 0
    ]
    if not pairs:
        return "", ""
    value, limit = max(pairs, key=lambda pair: math.inf if math.isnan(pair[0]) else pair[0] / pair[1])
    return eps(value), eps(limit)
