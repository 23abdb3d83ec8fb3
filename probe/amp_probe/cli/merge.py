"""`amp-probe merge`: several surveys in one document."""

from __future__ import annotations

from typing import Annotated

import typer

from amp_matrix import codec
from amp_probe.cli import inputs, output
from amp_probe.cli.refused import Faults

EXAMPLES = """\b
Examples:
  amp-probe merge mac.json linux.json -o all.json
  amp-probe merge surveys/ > all.json
"""


def command(
    path: Annotated[list[str], typer.Argument(metavar="PATH", hidden=True)],
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE", help="Write to this file instead of stdout.")
    ] = None,
) -> int:
    """Join surveys into one matrix document: each survey once, in an order of its own.

    A PATH is a survey file, a folder of them, or a URL (extra `remote`). Nothing is written where any file is damaged;
    the exit code is then 2.
    """
    faults = Faults()
    if out is not None and (wrong := output.check_writable(out)):
        faults.add("--out", wrong)
    faults.check()
    surveys = inputs.read_paths(path, strict=True)
    inputs.hint_where_empty(surveys, path)
    content = codec.encode_matrix(surveys)
    if out is None:
        output.data(content)
    else:
        output.write_file(out, content)
    return 0
