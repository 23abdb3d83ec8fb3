"""`amp-probe run`: probe devices, keep the surveys, print the matrix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from amp_matrix import codec
from amp_matrix.environment import identity_key
from amp_matrix.precision import parse as parse_precision
from amp_matrix.store import Store, StoreError, is_url
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


class _Asked(NamedTuple):
    """The options as they were given."""

    device: Sequence[str]
    suite: str | None
    probe: Sequence[str]
    precision: Sequence[str]
    timeout: str | None
    jobs: str | None
    resume: bool
    list_: bool
    simulate: str | None
    out: str | None


SuiteName = Annotated[
    str | None,
    typer.Option(metavar=o.one_of(SUITES), help="How much to run [default: core].", autocompletion=o.starting(SUITES)),
]
Probes = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Only probes, variants or cells that match; may be repeated."),
]
Out = Annotated[str | None, typer.Option(metavar="FILE", help="Also write the survey to this file.")]
Timeout = Annotated[
    str | None, typer.Option(metavar="SECONDS", help="Wall seconds a cell may take [default: 10, or the probe's].")
]
Jobs = Annotated[str | None, typer.Option(metavar="N", help="Workers on a CPU [default: 1].")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the newest run that was cut short.")]
List = Annotated[bool, typer.Option("--list", help="Print the ids of the cells, and run nothing.")]
Simulate = Annotated[
    str | None,
    typer.Option(
        metavar=o.one_of(SIMULATED),
        help="Run nothing: show autocast's policy for a device that is not here.",
        autocompletion=o.starting(SIMULATED),
    ),
]


def command(
    device: o.Devices = None,
    suite: SuiteName = None,
    probe: Probes = None,
    precision: o.Precisions = None,
    out: Out = None,
    timeout: Timeout = None,
    jobs: Jobs = None,
    resume: Resume = False,
    list_: List = False,
    simulate: Simulate = None,
    color: o.Color = None,
) -> int:
    """Run operators and training steps in every precision, and print what works.

    Every cell runs in a child process, so a crash costs only its cell. Failing cells are results: the exit code is 0.
    It is 3 where no device that was asked for is here, and 2 where what was measured can be kept nowhere.
    """
    given = (device or [], suite, probe or [], precision or [], timeout, jobs, resume, list_, simulate, out)
    return _command(_Asked(*given))


def _command(asked: _Asked) -> int:
    faults = Faults()
    options = _options(faults, asked)
    if asked.out is not None and (wrong := output.check_writable(asked.out)):
        faults.add("--out", wrong)
    if asked.simulate is not None:
        _check_simulated(faults, asked)
    faults.check()
    from amp_probe import run

    try:
        chosen = run.Options(**options)
        if asked.simulate is not None:
            return _simulate(asked.simulate, chosen, asked.out)
        return _list(chosen) if asked.list_ else _run(chosen, asked.out)
    except (run.RunError, ValueError) as error:
        raise Refused(str(error)) from error
    except run.NothingToProbe as error:
        raise Refused([f"{a.device}: {a.reason}" for a in error.absent] or str(error), NOTHING_PROBED) from error


def _check_simulated(faults: Faults, asked: _Asked) -> None:
    faults.choice("--simulate", asked.simulate or "", SIMULATED)
    others = {"--device": asked.device, "--probe": asked.probe, "--resume": asked.resume, "--list": asked.list_}
    for option, given in others.items():
        if given:
            faults.add(option, "means nothing with --simulate")


def _options(faults: Faults, asked: _Asked) -> dict[str, Any]:
    """The run's options, each checked; what is wrong joins the other faults."""
    config = o.configuration(faults)
    for name in asked.device:
        faults.read("--device", name, device_name)
    for name in asked.precision:
        faults.read("--precision", name, parse_precision)
    seconds = faults.read("--timeout", asked.timeout, _seconds) if asked.timeout is not None else config.timeout
    workers = faults.read("--jobs", asked.jobs, _count) if asked.jobs is not None else config.jobs
    if is_url(store := config.store or ""):
        faults.add("store", f"{store} can only be read; name a folder")
    return {
        "devices": tuple(asked.device) or tuple(config.devices),
        "suite": faults.choice("--suite", asked.suite or config.suite or "core", SUITES),
        "globs": tuple(asked.probe),
        "precisions": tuple(asked.precision),
        "timeout": seconds,
        "jobs": workers or 1,
        "resume": asked.resume,
        "store": o.store_of(config).root,
    }


def _list(options: Options) -> int:
    from amp_probe import run

    output.text("".join(f"{spec.id}\n" for spec in run.listing(options)))
    return 0


def _run(options: Options, out: str | None) -> int:
    from amp_matrix.render import terminal
    from amp_probe import run

    bar = progress.on_stderr()
    try:
        with bar:
            result = run.run(options, bar)
    except KeyboardInterrupt:
        if bar.cells and any(Store(options.store).journals.glob("*.jsonl")):
            output.note("what was measured so far is kept; the same command with --resume goes on")
        raise
    for missing in result.absent:
        output.note(f"{missing.device}: {missing.reason}")
    output.rich(terminal.matrix(result.surveys, plans.of(result.surveys, Store(options.store))))
    _keep(result.surveys, options.store, out)
    return 0


def _keep(surveys: Sequence[Survey], root: Path, out: str | None) -> None:
    """Write the file, and say where each survey is. Raises Refused where one is neither stored nor written."""
    if out is not None:
        output.write_file(out, _document(surveys))
    lost = [f"{survey.device}: {why}" for survey in surveys if (why := _not_stored(survey, root))]
    if lost and out is None:
        raise Refused([f"{line}; give --out FILE, or another folder in AMP_PROBE_STORE" for line in lost])


def _not_stored(survey: Survey, root: Path) -> str:
    """Why the survey is not in the store, which is tried once more; "", and where it is told, where it is."""
    path = root / "surveys" / identity_key(survey.environment) / f"{codec.survey_id(survey)}.json"
    try:
        if not path.is_file():
            Store(root).add(survey)
    except (OSError, StoreError) as error:
        return f"the survey could not be stored: {error}"
    output.note(f"{survey.device}: stored as {path}")
    return ""


def _simulate(kind: str, options: Options, out: str | None) -> int:
    from amp_probe import simulation
    from amp_probe.cli import simulated

    with progress.on_stderr() as bar:
        survey = simulation.simulate(kind, options, bar)
    output.text(simulated.table(survey))
    _keep([survey], options.store, out)
    return 0


def _document(surveys: Sequence[Survey]) -> bytes:
    return codec.encode(surveys[0]) if len(surveys) == 1 else codec.encode_matrix(surveys)


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
