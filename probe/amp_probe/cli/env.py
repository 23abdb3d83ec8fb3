"""`amp-probe env`: what decides here whether a result still holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
import typer

from amp_matrix.survey import Environment
from amp_probe.cli import options as o
from amp_probe.cli import output
from amp_probe.cli.refused import NOTHING_PROBED, Faults, Refused, device_name

EXAMPLES = """\b
Examples:
  amp-probe env
  amp-probe env --device cpu --format json
"""
FORMATS = ("text", "json")
_PARTS = (
    ("identity", "must be equal, or a result does not count"),
    ("scoped", "compared for the precisions it can change"),
    ("recorded", "shown only"),
)


def command(
    device: o.Devices = None,
    format: Annotated[
        str, typer.Option(metavar=o.one_of(FORMATS), help="How to print it.", autocompletion=o.starting(FORMATS))
    ] = "text",
    color: o.Color = None,
) -> int:
    """Print each device's environment, as choose compares it with what was measured.

    Names of the host and the user, and paths, are not in it.
    """
    faults = Faults()
    for name in device or []:
        faults.read("--device", name, device_name)
    faults.choice("--format", format, FORMATS)
    faults.check()
    from amp_probe import run

    try:
        known, missing = run.capture(tuple(device or ()))
    except run.RunError as error:
        raise Refused(str(error)) from error
    absent = {a.device: a.reason for a in missing}
    output.data(_json(known, absent)) if format == "json" else output.text(_text(known))
    if format == "text":
        for name, reason in absent.items():
            output.note(f"{name}: {reason}")
    return 0 if known else NOTHING_PROBED


def _json(known: Mapping[str, Environment], absent: Mapping[str, str]) -> bytes:
    from amp_matrix.environment import identity_key

    document = {
        "format": 1,
        "kind": "environments",
        "devices": {name: {"identity_key": identity_key(e), **msgspec.to_builtins(e)} for name, e in known.items()},
        "absent": dict(absent),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _text(known: Mapping[str, Environment]) -> str:
    lines = []
    for name, environment in known.items():
        lines.append(name)
        for part, meaning in _PARTS:
            fields = getattr(environment, part)
            lines += [f"  {part} ({meaning})", *(f"    {key}: {fields[key] or '-'}" for key in sorted(fields))]
    return "".join(f"{line}\n" for line in lines)
