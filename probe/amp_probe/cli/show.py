"""`amp-probe show`: print the matrix that was measured."""

from __future__ import annotations

from typing import Annotated

import typer

from amp_probe.cli import inputs, output, plans
from amp_probe.cli import options as o
from amp_probe.cli.refused import Faults, device_name

EXAMPLES = """\b
Examples:
  amp-probe show                                 all that the store holds
  amp-probe show survey.json                     one survey
  amp-probe show --device cuda --status crash --status inaccurate
"""


def command(
    path: o.Paths = None,
    device: o.Devices = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATUS",
            help=f"Only cells with this status ({', '.join(reversed(o.STATUSES))}); may be repeated.",
            autocompletion=o.starting(o.STATUSES),
        ),
    ] = None,
    color: o.Color = None,
) -> int:
    """Print the matrix of surveys: every probe against every precision, and the plan that follows.

    A PATH is a survey file, a folder of them, or a URL (extra `remote`); without one, the store is shown.
    """
    faults = Faults()
    config = o.configuration(faults)
    for name in device or []:
        faults.read("--device", name, device_name)
    for name in status or []:
        faults.choice("--status", name, o.STATUSES)
    faults.check()
    every, surveys = inputs.to_show(path or [], o.store_of(config), device or [])
    if surveys:
        from amp_matrix.render import terminal

        shown = inputs.with_status(surveys, status or [])
        output.rich(terminal.matrix(shown, plans.of(every, devices=device or ()), coverage=every))
    return 0
