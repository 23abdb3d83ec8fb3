"""`amp-probe report`: the matrix as a page, a table or data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from amp_matrix.plan import Plan
from amp_matrix.survey import Survey
from amp_probe.cli import inputs, output, plans
from amp_probe.cli import options as o
from amp_probe.cli.refused import Faults, device_name

EXAMPLES = """\b
Examples:
  amp-probe report --html -o report.html         one page that needs no network
  amp-probe report --markdown a.json b.json      for an issue or a README
  amp-probe report --csv -o cells.csv            a line a cell
  amp-probe report --json | jq .
"""


def command(
    path: o.Paths = None,
    html: Annotated[bool, typer.Option("--html", help="A web page in one file.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown tables.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="A table for a spreadsheet.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE", help="Write to this file instead of stdout.")
    ] = None,
    device: o.Devices = None,
) -> int:
    """Write surveys as HTML, Markdown, CSV or JSON.

    A PATH is a survey file, a folder of them, or a URL (extra `remote`); without one, the store is read.
    """
    faults = Faults()
    config = o.configuration(faults)
    forms = [n for n, on in (("html", html), ("markdown", markdown), ("csv", csv), ("json", json)) if on]
    if len(forms) != 1:
        faults.add("", "give one of --html, --markdown, --csv, --json")
    for name in device or []:
        faults.read("--device", name, device_name)
    if out is not None and (wrong := output.check_writable(out)):
        faults.add("--out", wrong)
    faults.check()
    every, surveys = inputs.to_show(path or [], o.store_of(config), device or [])
    _write(_render(forms[0], surveys, plans.of(every, devices=device or ()), every), out)
    return 0


def _render(form: str, surveys: Sequence[Survey], chosen: Sequence[Plan], every: Sequence[Survey]) -> bytes:
    if form == "html":
        from amp_matrix.render import html

        return html.render(surveys, chosen, coverage=every).encode()
    if form == "markdown":
        from amp_matrix.render import markdown

        return markdown.render(surveys, chosen, coverage=every).encode()
    if form == "csv":
        from amp_matrix.render import csv

        return csv.render(surveys).encode()
    from amp_matrix.render import json

    return json.render(surveys, chosen)


def _write(content: bytes, out: str | None) -> None:
    if out is None:
        output.data(content)
    else:
        output.write_file(out, content)
