"""What a project requires of a device, as people write it: `cpu: bf16-mixed: train; torch >= '2.6'`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from amp_matrix import cell_id
from amp_matrix.essential import TASKS
from amp_matrix.kinds import KINDS, hint
from amp_matrix.plan import Task
from amp_matrix.precision import nearest
from amp_matrix.precision import parse as parse_precision

NAMES = ("torch", "macos", "python")
"""What a marker may ask the version of."""

_TRIPLE = re.compile(r"(?P<device>[^:\s@]+(?::\d+)?)\s*:\s*(?P<precision>[^:\s@]+)\s*:\s*(?P<task>[^:\s@]+)")
_FLOOR = re.compile(r"(?P<cell>[^\s<>=!~]+)\s*(?P<op>[<>=!~]+)\s*(?P<floor>\S+)")
_CONDITION = re.compile(r"(?P<name>\w+)\s*(?P<op>[<>=!~]+)\s*(?P<quote>['\"])(?P<version>[^'\"]*)(?P=quote)")
_FORMS = "DEVICE: PRECISION: TASK, a cell's id, or a speed cell's id >= NUMBER"

T = TypeVar("T")


class RequirementError(ValueError):
    """Requirements that cannot be read. `faults` has a line for each thing that is wrong, with the text it is in."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


class Condition(msgspec.Struct, frozen=True):
    """A version asked for: `torch`, and `>=2.6` as packaging reads it."""

    name: str
    specifier: str

    def __str__(self) -> str:
        return f"{self.name} {self.specifier}"

    def holds(self, versions: Mapping[str, str]) -> bool:
        """Whether the version is known and is one of those; a nightly build counts by its number."""
        try:
            version = Version(versions.get(self.name, ""))
        except InvalidVersion:
            return False
        return SpecifierSet(self.specifier).contains(version, prereleases=True)


class Marker(msgspec.Struct, frozen=True):
    """Where a requirement applies: any of these groups of conditions, whole. None at all: everywhere."""

    anyof: tuple[tuple[Condition, ...], ...] = ()

    def __str__(self) -> str:
        return " or ".join(" and ".join(str(c) for c in group) for group in self.anyof)

    def holds(self, versions: Mapping[str, str]) -> bool:
        """Whether it holds for these versions of torch, macos and python; one that is not known never does."""
        return not self.anyof or any(all(c.holds(versions) for c in group) for group in self.anyof)


class Requirement(msgspec.Struct, frozen=True):
    """One requirement: a precision for a task, or a cell (`floor` above 0: a least gain over fp32).

    `device` is a kind (`cuda`, which is every one), a device (`cuda:0`), or "" for every device that is here.
    """

    text: str
    device: str = ""
    precision: str = ""
    task: Task = "train"
    cell: str = ""
    floor: float = 0.0
    marker: Marker = Marker()

    def speaks_of(self, device: str) -> bool:
        """Whether a device is one that this is required of."""
        return self.device in ("", device, device.partition(":")[0])


def parse(text: str, probes: Collection[str] = ()) -> Requirement:
    """Read one requirement; RequirementError has every fault. With `probes` a cell's probe must be one of them."""
    reader = _Reader(text, tuple(probes))
    found = reader.read()
    if reader.faults:
        raise RequirementError(reader.faults)
    return found


def parse_all(texts: Iterable[str], probes: Collection[str] = ()) -> tuple[Requirement, ...]:
    """Read some requirements; RequirementError has every fault of all of them."""
    readers = [_Reader(text, tuple(probes)) for text in texts]
    found = tuple(reader.read() for reader in readers)
    if faults := [fault for reader in readers for fault in reader.faults]:
        raise RequirementError(faults)
    return found


class _Reader:
    """Reads one requirement's text, collecting what is wrong with it on the way."""

    def __init__(self, text: str, probes: tuple[str, ...]) -> None:
        self.text, self.probes = text, probes
        self.faults: list[str] = []

    def read(self) -> Requirement:
        """The requirement; it means something only where no fault was found."""
        body, semicolon, marker = (part.strip() for part in self.text.partition(";"))
        read = Requirement(self.text.strip())
        if match := _TRIPLE.fullmatch(body):
            read = self._triple(match, read)
        elif "@" in body:
            read = self._cell(body, read)
        else:
            self._fault(f"write {_FORMS}")
        return msgspec.structs.replace(read, marker=self._marker(marker)) if semicolon else read

    def _fault(self, message: str) -> None:
        self.faults.append(f"{self.text.strip()!r}: {message}")

    def _try(self, read: Callable[[str], T], text: str) -> T | None:
        try:
            return read(text)
        except ValueError as error:
            self._fault(str(error))
            return None

    def _triple(self, match: re.Match[str], read: Requirement) -> Requirement:
        self._device(match["device"])
        self._try(parse_precision, match["precision"])
        task = next((t for t in TASKS if t == match["task"]), None)
        if task is None:
            self._fault(f"unknown task {match['task']!r}; {nearest(match['task'], TASKS)}")
        return msgspec.structs.replace(read, device=match["device"], precision=match["precision"], task=task or "train")

    def _device(self, device: str) -> None:
        kind, _, index = device.partition(":")
        if kind not in KINDS:
            self._fault(f"unknown device {device!r}; {hint(kind)}")
        elif index and kind not in ("cuda", "xpu"):
            self._fault(f"{kind} has no index; write {kind!r}")

    def _cell(self, body: str, read: Requirement) -> Requirement:
        match = _FLOOR.fullmatch(body)
        found = self._try(cell_id.parse, match["cell"] if match else body)
        if found is None:
            return read
        if found.device:
            self._device(found.device)
        if self.probes and found.probe not in self.probes:
            self._fault(f"unknown probe {found.probe!r}; {_hint(found.probe, self.probes)}")
        floor = self._floor(match, found.probe) if match else 0.0
        bare = msgspec.structs.replace(found, device="")
        return msgspec.structs.replace(read, device=found.device, cell=str(bare), floor=floor)

    def _floor(self, match: re.Match[str], probe: str) -> float:
        if not probe.startswith("speed."):
            self._fault(f"{probe} measures no speed; only speed.* cells take a number")
        if match["op"] != ">=":
            self._fault(f"unknown comparison {match['op']!r}; write >=")
        if not 0 < (floor := _number(match["floor"])) < math.inf:
            self._fault(f"{match['floor']!r} is no gain; write a number above 0, like 1.5")
        return floor

    def _marker(self, text: str) -> Marker:
        """Conditions joined by `and` and `or`, of which `and` binds tighter."""
        groups = [re.split(r"\s+and\s+", group) for group in re.split(r"\s+or\s+", text)]
        read = (tuple(c for part in group if (c := self._condition(part.strip()))) for group in groups)
        return Marker(tuple(read))

    def _condition(self, text: str) -> Condition | None:
        match = _CONDITION.fullmatch(text)
        if match is None:
            self._fault(f"{text!r} is no condition; write NAME >= 'VERSION', with one of {', '.join(NAMES)}")
            return None
        if match["name"] not in NAMES:
            self._fault(f"unknown name {match['name']!r}; {nearest(match['name'], NAMES)}")
        try:
            return Condition(match["name"], str(SpecifierSet(match["op"] + match["version"])))
        except InvalidSpecifier:
            self._fault(f"{match['op']} {match['version']!r} is no comparison with a version")
            return None


def _number(text: str) -> float:
    """A number; NaN for what is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _hint(word: str, known: tuple[str, ...]) -> str:
    """The nearest spelling; a hundred probes are no hint."""
    hint = nearest(word, known)
    return hint if hint.startswith("did") else "amp-probe run --list shows them"
