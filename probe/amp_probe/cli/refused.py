"""What stops a command with a clean message: no traceback, and an exit code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from amp_matrix.kinds import KINDS, hint
from amp_matrix.precision import nearest

T = TypeVar("T")
FINE, GATE_FAILED, USAGE, NOTHING_PROBED, INTERRUPTED = 0, 1, 2, 3, 130


class Refused(Exception):
    """A command that cannot go on: every fault a line. `code` is the exit code; `usage` adds where to read more."""

    def __init__(self, faults: str | Iterable[str], code: int = USAGE, usage: bool = False) -> None:
        self.faults = (faults,) if isinstance(faults, str) else tuple(faults)
        self.code, self.usage = code, usage
        super().__init__("\n".join(self.faults))


class Faults:
    """Collects what is wrong with a command's options, so that all of it is said at once."""

    def __init__(self, found: Iterable[str] = ()) -> None:
        self._found = list(found)

    def add(self, option: str, message: str) -> None:
        """Note that an option is wrong, and how; "" where no one option is."""
        self._found.append(f"{option}: {message}" if option else message)

    def choice(self, option: str, value: str, known: Sequence[str]) -> str:
        """The value, which must stand in a closed list."""
        if value not in known:
            self.add(option, f"unknown value {value!r}; {nearest(value, tuple(known))}")
        return value

    def read(self, option: str, value: str, reader: Callable[[str], T]) -> T | None:
        """What a reader makes of the value; its ValueError is a fault of this option."""
        try:
            return reader(value)
        except ValueError as error:
            self.add(option, str(error))
            return None

    def check(self) -> None:
        """Raise Refused where anything was found."""
        if self._found:
            raise Refused(self._found, usage=True)


def device_name(text: str) -> str:
    """A device by torch's name, `cuda` for all of a kind; ValueError names the nearest spelling."""
    match = re.fullmatch(r"([a-z]+)(:\d+)?", text, re.ASCII)
    if match is None:
        meant = hint(text) if text.partition(":")[0].lower() in KINDS else "write cpu, cuda, cuda:0, mps or xpu:0"
        raise ValueError(f"{text!r} is not a device; {meant}")
    if match[1] not in KINDS:
        raise ValueError(f"unknown device {text!r}; {hint(match[1])}")
    if match[1] in ("cpu", "mps") and match[2]:
        raise ValueError(f"unknown device {text!r}; there is one {match[1]}, written {match[1]!r}")
    return text
