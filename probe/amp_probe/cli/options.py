"""Options that several commands share, and the configuration under them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from amp_matrix.config import Config, ConfigError
from amp_matrix.config import load as load_config
from amp_matrix.kinds import KINDS
from amp_matrix.precision import COMPUTES, nearest
from amp_matrix.store import Store
from amp_matrix.survey import Status
from amp_probe.cli import output
from amp_probe.cli.refused import Faults

TASKS = ("train", "infer")
PREFERS = ("speed", "memory")
STATUSES = tuple(str(s) for s in Status)


def starting(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    """A shell completion: the words of a closed list that begin as typed."""
    return lambda incomplete: [word for word in known if word.startswith(incomplete)]


def one_of(known: tuple[str, ...]) -> str:
    """How a closed list is written in help: `a|b|c`."""
    return "|".join(known)


def _set_color(value: str | None) -> str | None:
    if value is not None and value not in output.COLORS:
        raise typer.BadParameter(f"unknown value {value!r}; {nearest(value, output.COLORS)}")
    if value is not None:
        output.set_color(value)
    return value


Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", hidden=True),  # described in the command's text, without typer's type names
]
Devices = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="cpu, cuda, cuda:0, mps, xpu; may be repeated. Without it, all.",
        autocompletion=starting(KINDS),
    ),
]
Precisions = Annotated[
    list[str] | None,
    typer.Option(
        "--precision",
        metavar="PRECISION",
        help=f"Only these precisions ({', '.join(COMPUTES)}); may be repeated.",
        autocompletion=starting(COMPUTES),
    ),
]
Color = Annotated[
    str | None,
    typer.Option(
        "--color",
        metavar=one_of(output.COLORS),
        help="Colour the output; auto means on a terminal, and not where NO_COLOR is set.",
        callback=_set_color,
        autocompletion=starting(output.COLORS),
    ),
]


def configuration(faults: Faults) -> Config:
    """AMP_PROBE_* over the nearest pyproject.toml's table; what is wrong there joins the other faults."""
    try:
        return load_config(_here(), os.environ)
    except ConfigError as error:
        for fault in error.faults:
            faults.add(fault.place, fault.message)
        return Config()


def store_of(config: Config) -> Store:
    """Where surveys are kept: as configured, else the user's data folder."""
    return Store(config.store) if config.store else Store.default()


def _here() -> Path:
    try:
        return Path.cwd()
    except OSError:  # the folder was removed under us
        return Path(os.sep)
