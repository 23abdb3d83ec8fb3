"""`amp-probe diff`: what changed between two sets of surveys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from amp_matrix.matrix import Change, ChangeKind, diff
from amp_probe.cli import inputs, output
from amp_probe.cli import options as o
from amp_probe.cli.refused import GATE_FAILED, Faults

EXAMPLES = """\b
Examples:
  amp-probe diff before.json after.json
  amp-probe diff torch-2.12/ torch-2.13/ --fail-on regressions
"""
FORMATS = ("text", "json")
FAIL_ON = ("regressions",)
KINDS: tuple[ChangeKind, ...] = ("broken", "fixed", "changed", "added", "removed")
SHOWN = 20
"""At most this many cells that came, and that went, are named; JSON has them all."""


def command(
    old: Annotated[str, typer.Argument(metavar="OLD", hidden=True)],
    new: Annotated[str, typer.Argument(metavar="NEW", hidden=True)],
    format: Annotated[
        str, typer.Option(metavar=o.one_of(FORMATS), help="How to print it.", autocompletion=o.starting(FORMATS))
    ] = "text",
    fail_on: Annotated[
        str | None,
        typer.Option(metavar="regressions", help="Exit with 1 where a cell broke.", autocompletion=o.starting(FAIL_ON)),
    ] = None,
) -> int:
    """Print the cells that broke, were fixed, changed, came or went.

    OLD and NEW are survey files, folders of them, or URLs (extra `remote`); on each side the newest result counts.
    """
    faults = Faults()
    faults.choice("--format", format, FORMATS)
    if fail_on is not None:
        faults.choice("--fail-on", fail_on, FAIL_ON)
    faults.check()
    changes = diff(inputs.read_paths([old]), inputs.read_paths([new]))
    output.data(_json(changes)) if format == "json" else output.text(_lines(changes))
    broken = any(c.kind == "broken" for c in changes)
    return GATE_FAILED if fail_on and broken else 0


def _json(changes: Sequence[Change]) -> bytes:
    document = {"format": 1, "kind": "diff", "changes": [msgspec.to_builtins(c) for c in changes]}
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _lines(changes: Sequence[Change]) -> str:
    """A line a change, of cells that came or went at most SHOWN, and a summary."""
    if not changes:
        return "no cell changed\n"
    lines = []
    for kind in KINDS:
        same = [c for c in changes if c.kind == kind]
        shown = same[:SHOWN] if kind in ("added", "removed") else same
        lines += [f"{kind:8} {c.device}/{c.cell}: {_step(c)}" for c in shown]
        lines += [f"{kind:8} and {len(same) - len(shown)} more"] if len(shown) < len(same) else []
    counts = Counter(c.kind for c in changes)
    lines.append(", ".join(f"{counts[kind]} {kind}" for kind in KINDS))
    return "".join(f"{line}\n" for line in lines)


def _step(change: Change) -> str:
    return f"{change.before or 'not there'} -> {change.after or 'not there'}"
