"""`amp-probe run`: probe devices, keep the surveys, print the matrix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amp_matrix import codec
from amp_matrix.environment import identity_key
from amp_matrix.precision import parse as parse_precision
from amp_matrix.store import Store, is_url
from amp_matrix.survey import Survey
from amp_probe.cli import options as o
from amp_probe.cli import output, plans, progress
from amp_probe.cli.refused import NOTHING_PROBED, Faults, Refused, device_name
from amp_probe.request import SIMULATED, SUITES

if TYPE_CHECKING:
    from amp_probe.run import Options

_WEEK = 7 * 24 * 3600
EXAMPLES = """\b
Examples:
  amp-probe run                                  every device here, the core suite
  amp-probe run --device cuda:0 --suite quick    the essential cells, some seconds
  amp-probe run --probe 'op.attention*' --precision bf16-mixed
  amp-probe run --list --suite quick             the cells, without running them
  amp-probe run --out survey.json                keep a copy to share or to merge
  amp-probe run --simulate mps                   what autocast would do on a device that is not here
"""


def command(
    device: o.Devices = None,
    suite: Annotated[
        str | None,
        typer.Option(
            metavar=o.one_of(SUITES), help="How much to run [default: core].", autocompletion=o.starting(SUITES)
        ),
    ] = None,
    probe: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Only probes, variants or cells that match; may be repeated."),
    ] = None,
    precision: o.Precisions = None,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Also write the survey to this file.")] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="SECONDS", help="Wall seconds a cell may take [default: 10, or the probe's].")
    ] = None,
    jobs: Annotated[str | None, typer.Option(metavar="N", help="Workers on a CPU [default: 1].")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest run that was cut short.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Print the ids of the cells, and run nothing.")] = False,
    simulate: Annotated[
        str | None,
        typer.Option(
            metavar=o.one_of(SIMULATED),
            help="Run nothing: show autocast's policy for a device that is not here.",
            autocompletion=o.starting(SIMULATED),
        ),
    ] = None,
    color: o.Color = None,
) -> int:
    """Run operators and training steps in every precision, and print what works.

    Every cell runs in a child process, so a crash costs only its cell. Failing cells are results: the exit code is 0.
    It is 3 where no device that was asked for is here.
    """
    faults = Faults()
    asked = _options(faults, device or [], suite, probe or [], precision or [], timeout, jobs, resume)
    if out is not None and (wrong := output.check_writable(out)):
        faults.add("--out", wrong)
    if simulate is not None:
        faults.choice("--simulate", simulate, SIMULATED)
        for option, given in {"--device": device, "--probe": probe, "--resume": resume, "--list": list_}.items():
            if given:
                faults.add(option, "means nothing with --simulate")
    faults.check()
    from amp_probe import run

    try:
        chosen = run.Options(**asked)
        if simulate is not None:
            return _simulate(simulate, chosen, out)
        return _list(chosen) if list_ else _run(chosen, out)
    except (run.RunError, ValueError) as error:
        raise Refused(str(error)) from error
    except run.NothingToProbe as error:
        raise Refused([f"{a.device}: {a.reason}" for a in error.absent] or str(error), NOTHING_PROBED) from error


def _options(
    faults: Faults,
    device: Sequence[str],
    suite: str | None,
    probe: Sequence[str],
    precision: Sequence[str],
    timeout: str | None,
    jobs: str | None,
    resume: bool,
) -> dict[str, Any]:
    """The run's options, each checked; what is wrong joins the other faults."""
    config = o.configuration(faults)
    for name in device:
        faults.read("--device", name, device_name)
    for name in precision:
        faults.read("--precision", name, parse_precision)
    seconds = faults.read("--timeout", timeout, _seconds) if timeout is not None else config.timeout
    workers = faults.read("--jobs", jobs, _count) if jobs is not None else config.jobs
    if is_url(store := config.store or ""):
        faults.add("store", f"{store} can only be read; name a folder")
    return {
        "devices": tuple(device) or tuple(config.devices),
        "suite": faults.choice("--suite", suite or config.suite or "core", SUITES),
        "globs": tuple(probe),
        "precisions": tuple(precision),
        "timeout": seconds,
        "jobs": workers or 1,
        "resume": resume,
        "store": o.store_of(config).root,
    }


def _list(options: Options) -> int:
    from amp_probe import run

    output.text("".join(f"{spec.id}\n" for spec in run.listing(options)))
    return 0


def _run(options: Options, out: str | None) -> int:
    from amp_matrix.render import terminal
    from amp_probe import run

    try:
        with progress.on_stderr() as bar:
            result = run.run(options, bar)
    except KeyboardInterrupt:
        output.note("what was measured so far is kept; the same command with --resume goes on")
        raise
    for missing in result.absent:
        output.note(f"{missing.device}: {missing.reason}")
    output.rich(terminal.matrix(result.surveys, plans.of(result.surveys, Store(options.store))))
    for survey in result.surveys:
        _tell_where(survey, options.store)
    if out is not None:
        output.write_file(out, _document(result.surveys))
    return 0


def _simulate(kind: str, options: Options, out: str | None) -> int:
    from amp_probe import simulation
    from amp_probe.cli import simulated

    with progress.on_stderr() as bar:
        survey = simulation.simulate(kind, options, bar)
    output.text(simulated.table(survey))
    _tell_where(survey, options.store)
    if out is not None:
        output.write_file(out, _document([survey]))
    return 0


def _document(surveys: Sequence[Survey]) -> bytes:
    return codec.encode(surveys[0]) if len(surveys) == 1 else codec.encode_matrix(surveys)


def _tell_where(survey: Survey, store: Path) -> None:
    path = store / "surveys" / identity_key(survey.environment) / f"{codec.survey_id(survey)}.json"
    if path.is_file():
        output.note(f"{survey.device}: stored as {path}")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _WEEK:
        raise ValueError(f"{text!r} is not a time; write seconds above 0, at most {_WEEK}")
    return seconds


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1024:
        raise ValueError(f"{text!r} is not a number of workers; write 1 to 1024")
    return int(text)
