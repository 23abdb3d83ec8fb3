"""`amp-probe check`: the gate for continuous integration."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from amp_matrix import baseline as baselines
from amp_matrix import gate
from amp_matrix.environment import identity_key
from amp_matrix.gate import Finding, Place
from amp_matrix.matrix import select
from amp_matrix.requirement import Requirement, RequirementError, parse_all
from amp_matrix.store import Store
from amp_matrix.survey import Survey
from amp_probe.cli import inputs, output
from amp_probe.cli import options as o
from amp_probe.cli.refused import FINE, GATE_FAILED, Faults, Refused

EXAMPLES = """\b
Examples:
  amp-probe check --require 'cpu: bf16-mixed: train'
  amp-probe check --require 'op.softmax@bf16-mixed' survey.json
  amp-probe check --require 'speed.train_step@bf16-mixed >= 1.5'
  amp-probe check --require "mps: fp16-mixed: train; macos >= '14'"
  amp-probe check --baseline amp-baseline.json --write-baseline
  amp-probe check --baseline amp-baseline.json
"""
FORMATS = ("text", "json")
_WORDS = {"met": "met", "failed": "FAILED", "not_applicable": "not here", "fixed": "fixed", "stale": "stale"}


def command(
    path: o.Paths = None,
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="REQ", help="DEVICE: PRECISION: TASK, or a cell's id; may be repeated."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="FILE", help="Fail where a cell fails that does not stand in this file.")
    ] = None,
    write_baseline: Annotated[
        bool, typer.Option("--write-baseline", help="Write the cells that fail now to the baseline file.")
    ] = False,
    format: Annotated[
        str, typer.Option(metavar=o.one_of(FORMATS), help="How to print it.", autocompletion=o.starting(FORMATS))
    ] = "text",
    strict: Annotated[bool, typer.Option("--strict", help="A device that is not here fails, too.")] = False,
) -> int:
    """Exit with 1 where a requirement does not hold, or where a cell fails that the baseline does not know.

    A PATH is a survey file, a folder of them, or a URL (extra `remote`), judged as measured. Without one the store
    is judged for the devices and the environment of now: what was measured under another torch does not count.
    """
    faults = Faults()
    config = o.configuration(faults)
    requirements = _requirements(faults, require or config.require)
    file = baseline or config.baseline
    faults.choice("--format", format, FORMATS)
    _check_baseline(faults, file, write_baseline)
    if not require and not config.require and not file:
        faults.add("--require", "nothing to check; give a requirement or a --baseline")
    kept = _baseline(faults, file) if file and not write_baseline else ()
    faults.check()
    places = _measured(path) if path else _here(o.store_of(config))
    findings = gate.evaluate(requirements, places, strict=strict, host={} if path else _host())
    if file and write_baseline:
        _write(file, places)
    elif file:
        findings += gate.against(kept, places)
    if format == "json":
        output.data(_json(findings))
    elif findings or not write_baseline:
        output.text(_text(findings))
    return GATE_FAILED if gate.failed(findings) else FINE


def _check_baseline(faults: Faults, file: str | None, writing: bool) -> None:
    if writing and not file:
        faults.add("--write-baseline", "name the file with --baseline")
    if writing and file and (wrong := output.check_writable(file)):
        faults.add("--baseline", wrong)


def _requirements(faults: Faults, texts: Sequence[str]) -> tuple[Requirement, ...]:
    try:
        return parse_all(texts)
    except RequirementError as error:
        for line in error.faults:
            faults.add("--require", line)
        return ()


def _baseline(faults: Faults, file: str) -> tuple[str, ...]:
    try:
        return baselines.decode(Path(file).read_bytes(), file)
    except baselines.BaselineError as error:
        for line in str(error).splitlines():
            faults.add("--baseline", line)
    except (OSError, ValueError) as error:
        faults.add("--baseline", f"{file}: {getattr(error, 'strerror', None) or error}")
    return ()


def _measured(paths: Sequence[str]) -> tuple[Place, ...]:
    """A place for each device and environment in these surveys."""
    surveys = inputs.read_paths(paths, strict=True)
    newest = {(s.device, identity_key(s.environment)): s for s in sorted(surveys, key=lambda s: s.started)}
    return tuple(_place(newest[key], surveys) for key in sorted(newest))


def _place(newest: Survey, surveys: Sequence[Survey]) -> Place:
    return Place(newest.device, newest.environment, select(surveys, newest.environment.identity), tuple(surveys))


def _here(store: Store) -> tuple[Place, ...]:
    """A place for each device that is here now, with what the store knows of it. Damage there stops the gate."""
    surveys = inputs.read((), store, strict=True)
    from amp_probe import run

    try:
        found, _ = run.capture()
    except run.RunError as error:
        raise Refused(str(error)) from error
    return tuple(Place(device, now, select(surveys, now.identity), surveys) for device, now in found.items())


def _host() -> dict[str, str]:
    """The versions here that markers ask for, where no device's environment says them."""
    found = {"python": platform.python_version(), "macos": platform.mac_ver()[0]}
    with suppress(metadata.PackageNotFoundError):
        found["torch"] = metadata.version("torch")
    return {name: version for name, version in found.items() if version}


def _write(file: str, places: Sequence[Place]) -> None:
    names = gate.failing(places)
    output.write_file(file, baselines.encode(names))
    output.note(f"{len(names)} failing cell{'' if len(names) == 1 else 's'} written to {file}")


def _json(findings: Sequence[Finding]) -> bytes:
    document: Mapping[str, object] = {
        "format": 1,
        "kind": "check",
        "passed": not gate.failed(findings),
        "findings": [msgspec.to_builtins(f) for f in findings],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _text(findings: Sequence[Finding]) -> str:
    lines = [f"{_WORDS[f.verdict]:8} {_where(f)}: {f.reason}" for f in findings]
    counts = Counter(_WORDS[f.verdict] for f in findings)
    lines.append(", ".join(f"{counts[w]} {w}" for w in _WORDS.values() if counts[w]) or "nothing fails")
    return "".join(f"{line}\n" for line in lines)


def _where(finding: Finding) -> str:
    if finding.source == "baseline" or not finding.device or finding.subject.startswith(finding.device):
        return finding.subject
    return f"{finding.device}/{finding.subject}" if "@" in finding.subject else f"{finding.subject} ({finding.device})"
