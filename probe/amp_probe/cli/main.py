"""The `amp-probe` command: its parts, and the one place where errors become exit codes."""

from __future__ import annotations

import errno
import functools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

from amp_matrix.version import __version__
from amp_probe.cli import check, choose, diff, env, merge, output, report, run, schema, show
from amp_probe.cli import options as o
from amp_probe.cli.refused import FINE, INTERRUPTED, USAGE, Refused

_COMMANDS: tuple[tuple[str, str, Callable[..., int], str], ...] = (
    ("run", "Measure, and keep what was seen.", run.command, run.EXAMPLES),
    ("show", "Print the matrix that was measured.", show.command, show.EXAMPLES),
    ("report", "Write it as HTML, Markdown, CSV or JSON.", report.command, report.EXAMPLES),
    ("choose", "Say which precision to use here, and why.", choose.command, choose.EXAMPLES),
    ("check", "Fail where a requirement does not hold.", check.command, check.EXAMPLES),
    ("diff", "Print what changed between two surveys.", diff.command, diff.EXAMPLES),
    ("merge", "Join surveys into one document.", merge.command, merge.EXAMPLES),
    ("env", "Print what a result here depends on.", env.command, env.EXAMPLES),
    ("schema", "Print the JSON Schema of the documents.", schema.command, schema.EXAMPLES),
)
_EXAMPLES = """\b
Examples:
  amp-probe run && amp-probe choose
  amp-probe COMMAND --help
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code: 0, 1 (a gate failed), 2, 3 (nothing to probe) or 130 (Ctrl-C)."""
    output.open_streams()
    output.set_color("auto")
    try:
        code = _invoke(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:  # noqa: BLE001 -- the last line of defence: a traceback would exit with 1
        code = _internal(error)
    if code == INTERRUPTED:
        output.note("interrupted")
    output.close_stdout()
    return code


def build() -> typer.Typer:
    """The application with every command."""
    app = typer.Typer(
        help="Know, by measurement, which precision really works on this machine.",
        epilog=_EXAMPLES,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    )
    app.callback(invoke_without_command=True)(_global)
    for name, summary, command, examples in _COMMANDS:
        app.command(name, short_help=summary, epilog=examples)(_exits(name, command))
    return app


def _global(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    color: o.Color = None,
) -> None:
    if version:
        output.text(f"amp-probe {__version__}\n")
        raise typer.Exit(FINE)
    if context.invoked_subcommand is None:
        output.note(context.get_help())
        raise typer.Exit(USAGE)


def _exits(name: str, command: Callable[..., int]) -> Callable[..., None]:
    """The command with its exit code raised as typer expects, and a refusal told on stderr."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            code = command(*args, **kwargs)
        except Refused as refused:
            _tell(name, refused)
            code = refused.code
        raise typer.Exit(code)

    return wrapped


def _invoke(arguments: list[str]) -> int:
    """Parse and run; typer ends every way out by SystemExit."""
    try:
        get_command(build())(arguments, prog_name="amp-probe")
    except SystemExit as end:
        cause = end.__context__
        if isinstance(cause, OSError) and cause.errno == errno.EPIPE:  # typer gives 1, which means a failed gate here
            output.silence_stdout()
            return FINE
        return end.code if isinstance(end.code, int) else FINE if end.code is None else USAGE
    return FINE


def _tell(name: str, refused: Refused) -> None:
    for fault in refused.faults:
        output.note(f"error: {fault}")
    if refused.usage:
        output.note(f"Try 'amp-probe {name} --help' for help.")


def _internal(error: Exception) -> int:
    if os.environ.get("AMP_PROBE_DEBUG", "") not in ("", "0"):
        output.note("".join(traceback.format_exception(error)).rstrip())
    line = " ".join(f"{type(error).__name__}: {error}".split())
    output.note(f"internal error: {line}; please report it with the output of AMP_PROBE_DEBUG=1")
    return USAGE
