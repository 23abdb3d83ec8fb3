"""How a run is told: lines in a pipe, a bar on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest

from amp_matrix.survey import Status, Survey
from amp_probe.cli import output, progress

TOLD = (
    "import msgspec, sys\nfrom amp_matrix import codec\nfrom amp_probe.cli.progress import on_stderr\n"
    "(survey,) = codec.decode(open(sys.argv[1], 'rb').read(), 'survey')\n"
    "with on_stderr() as told:\n"
    "    told.started(survey.device, len(survey.cells))\n"
    "    for cell in survey.cells: told.cell(cell)\n"
    "    told.warned('no [red]journal[/red]')\n"
    "    told.finished(survey)\n"
)


def test_a_pipe_gets_a_line_at_the_start_and_one_at_the_end(capsys, survey: Callable[..., Survey]) -> None:
    seen = survey(changed={"op.gelu@fp32": Status.CRASH})
    told = progress.on_stderr()
    assert type(told) is progress.Lines
    with told:
        told.started("cpu", len(seen.cells))
        for cell in seen.cells:
            told.cell(cell)
        told.finished(seen)
    count = len(seen.cells)
    assert capsys.readouterr() == ("", f"cpu: {count} cells to run\ncpu: {count - 1} ok, 1 crash, in 1.5 s\n")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX terminals")
@pytest.mark.parametrize(("terminal", "columns"), [("xterm-256color", 80), ("xterm", 10), ("dumb", 80)])
def test_a_terminal_gets_a_bar_and_keeps_the_lines(written, terminal: str, columns: int) -> None:
    import pexpect

    environ = {**os.environ, "TERM": terminal, "COLUMNS": str(columns)}
    command = ["-c", TOLD, str(written())]
    child = pexpect.spawn(sys.executable, command, env=environ, timeout=60, dimensions=(24, columns))
    shown = child.read()
    child.close()
    assert child.exitstatus == 0, shown
    assert b"warning: no [red]journal[/red]" in shown
    assert b" ok, in 1.5 s" in shown
    assert (b"\x1b[" in shown) is (terminal != "dumb")


def test_a_closed_stream_is_no_terminal() -> None:
    stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 -- closed on purpose
    stream.close()
    assert not output.is_terminal(stream)
