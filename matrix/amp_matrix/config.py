"""Settings from AMP_PROBE_* over the `[tool.amp-probe]` table of the nearest pyproject.toml."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from amp_matrix.faults import Fault, printable
from amp_matrix.kinds import hint
from amp_matrix.precision import nearest
from amp_matrix.rules import shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PREFIX = "AMP_PROBE_"
TABLE = "tool.amp-probe"
OTHERS = ("AMP_PROBE_DEBUG",)
"""Variables that are no settings: with DEBUG the command shows the traceback of an internal error."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What is set; None or () where nothing is. `store` and `baseline` are absolute paths (`store` may be a URL)."""

    store: str | None = None
    suite: str | None = None
    devices: tuple[str, ...] = ()
    timeout: float | None = None
    jobs: int | None = None
    task: str | None = None
    prefer: str | None = None
    require: tuple[str, ...] = ()
    baseline: str | None = None


class ConfigError(Exception):
    """Settings that cannot be used: every fault on its own line, each with its file and key, or its variable."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(tuple(faults))
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return "\n".join(f"{printable(f.place)}: {f.message}" for f in self.faults)


def load(start: Path, environ: Mapping[str, str]) -> Config:
    """The settings that hold in the folder `start`; ConfigError with every fault of the file and the environment."""
    faults: list[Fault] = []
    file, table = _nearest_table(start, faults)
    in_file = _read(table, lambda key: f"{file}: {TABLE}.{key}", file.parent if file else start, faults)
    in_environ = _read(_variables(environ, faults), lambda key: _variable(key), start, faults)
    if faults:
        raise ConfigError(faults)
    return Config(**{**in_file, **in_environ})


def _read(table: Mapping[str, Any], place: Callable[[str], str], base: Path, faults: list[Fault]) -> dict[str, Any]:
    """The table's values as Config has them; what is wrong with them joins the faults."""
    read = {}
    for key, value in table.items():
        if key not in _READERS:
            faults.append(Fault(place(key), f"unknown key; {nearest(key[:60], tuple(_READERS))}"))
            continue
        try:
            read[key] = _READERS[key](value, base)
        except ValueError as error:
            faults.append(Fault(place(key), str(error)))
    return read


def _nearest_table(start: Path, faults: list[Fault]) -> tuple[Path | None, dict[str, Any]]:
    """The nearest pyproject.toml at or above `start` that has the table, and the table."""
    here = Path(os.path.abspath(start))
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        if not os.path.isfile(file):
            continue
        try:
            tool = tomllib.loads(file.read_bytes().decode("utf-8")).get("tool", {})
        except (OSError, ValueError, RecursionError) as error:
            faults.append(Fault(str(file), f"cannot be read: {_reason(error)}"))
            return file, {}
        if isinstance(tool, dict) and "amp-probe" in tool:
            table = tool["amp-probe"]
            if isinstance(table, dict):
                return file, table
            faults.append(Fault(f"{file}: {TABLE}", f"expected a table, got {shown(table)}"))
            return file, {}
    return None, {}


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 at byte {error.start}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text.partition("\n")[0]


def _variables(environ: Mapping[str, str], faults: list[Fault]) -> dict[str, Any]:
    """The AMP_PROBE_* variables that are set, by key, as a file would have them; an empty one is not set."""
    table: dict[str, Any] = {}
    for name, text in sorted(environ.items()):
        key = name[len(PREFIX) :].lower()
        if not name.startswith(PREFIX) or name in OTHERS or not text.strip():
            continue
        if name != _variable(key) or key not in _READERS:
            faults.append(
                Fault(name, f"unknown variable; {nearest(name[:60].upper(), tuple(map(_variable, _READERS)))}")
            )
            continue
        table[key] = _FROM_TEXT.get(key, str)(text.strip())
    return table


def _variable(key: str) -> str:
    return PREFIX + key.upper()


def _separated(mark: str) -> Callable[[str], list[str]]:
    return lambda text: [part.strip() for part in text.split(mark) if part.strip()]


def _number(text: str) -> float | str:
    """The number that a text says; the text itself where it says none, for the reader to refuse."""
    try:
        return int(text) if re.fullmatch("[+-]?[0-9]{1,18}", text) else float(text)
    except ValueError:
        return text


def _path(value: object, base: Path) -> str:
    text = os.path.expanduser(_text(value, base))
    return os.path.abspath(base / text)


def _place(value: object, base: Path) -> str:
    """A path, or a URL as it is."""
    text = _text(value, base)
    return text if "://" in text else _path(value, base)


def _text(value: object, base: Path) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {shown(value)}")
    if not value or "\0" in value:
        raise ValueError(f"{shown(value)} names nothing")
    return value


def _one_of(*known: str) -> Callable[[object, Path], str]:
    def read(value: object, base: Path) -> str:
        if not isinstance(value, str):
            raise ValueError(f"expected one of {', '.join(known)}, got {shown(value)}")
        if value not in known:
            raise ValueError(f"unknown value {shown(value)}; {nearest(value[:60], known)}")
        return value

    return read


def _texts(value: object, base: Path) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"expected a list of texts, got {shown(value)}")
    if not all(item.strip() for item in value):
        raise ValueError("a text in the list is empty")
    return tuple(item.strip() for item in value)


def _devices(value: object, base: Path) -> tuple[str, ...]:
    names = _texts(value, base)
    for name in names:
        if not re.fullmatch(r"cpu|mps|(cuda|xpu)(:[0-9]{1,4})?", name):
            raise ValueError(f"unknown device {shown(name)}; {hint(name[:60])}")
    return names


def _seconds(value: object, base: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"expected seconds as a number, got {shown(value)}")
    if not 0 < value <= _LONGEST or math.isnan(value):
        raise ValueError(f"expected seconds above 0 and at most {_LONGEST}, got {shown(value)}")
    return float(value)


def _count(value: object, base: Path) -> int:
    if type(value) is not int or not 1 <= value <= _MOST_JOBS:
        raise ValueError(f"expected a whole number from 1 to {_MOST_JOBS}, got {shown(value)}")
    return value


_LONGEST = 7 * 24 * 3600
_MOST_JOBS = 1024
_READERS: dict[str, Callable[[object, Path], Any]] = {
    "store": _place,
    "suite": _one_of("quick", "core", "full"),
    "devices": _devices,
    "timeout": _seconds,
    "jobs": _count,
    "task": _one_of("train", "infer"),
    "prefer": _one_of("speed", "memory"),
    "require": _texts,
    "baseline": _path,
}
"""How each key's value is read, relative paths from the folder given; ValueError says what was expected."""

_FROM_TEXT: dict[str, Callable[[str], object]] = {
    "devices": _separated(","),
    "require": _separated("\n"),
    "timeout": _number,
    "jobs": _number,
}
"""How a variable's text becomes what a file would hold; every other key holds text. A requirement may have commas."""
