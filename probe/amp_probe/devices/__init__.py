"""What differs between cpu, cuda, mps and xpu. Everything else is the same code on every device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

import torch

from amp_matrix.precision import nearest
from amp_probe.devices import cpu, cuda, mps, xpu
from amp_probe.request import Absent, Resolved


class Backend(Protocol):
    """A kind of device. Each module of this package is one.

    `forks`: a worker may be forked from a process that has imported torch and run no op.
    """

    forks: bool

    def absence(self) -> str:
        """Why no device of this kind can be used, as a phrase, or ""."""

    def names(self) -> tuple[str, ...]:
        """torch's names of the devices that can be used; none where `absence` gives a reason."""

    def synchronize(self, device: torch.device) -> None:
        """Wait until everything given to the device is done; raises what went wrong there meanwhile."""

    def reset_peak(self, device: torch.device) -> None:
        """Start measuring peak memory anew."""

    def peak_bytes(self, device: torch.device) -> int:
        """Peak memory in bytes since the last reset; 0 where it cannot be known."""

    def canary(self, device: torch.device) -> str:
        """What is wrong with the device, as a sentence, or ""."""


BACKENDS: dict[str, Backend] = {"cpu": cpu, "cuda": cuda, "mps": mps, "xpu": xpu}
KINDS = tuple(BACKENDS)
_FORM = re.compile(r"(?P<kind>[a-z]+)(?::(?P<index>\d{1,4}))?", re.ASCII)
_OTHER_NAMES = {"nvidia": "cuda", "rocm": "cuda", "hip": "cuda", "metal": "mps", "apple": "mps"}


def backend(device: str) -> Backend:
    """The backend of a device's name; ValueError where the name means nothing."""
    return BACKENDS[split(device)[0]]


def resolve(asked: Sequence[str]) -> Resolved:
    """The devices meant by names like `cuda` (each visible one) and `cuda:1`; none asked for means all that are here.

    ValueError for a name that means nothing, whatever the machine has.
    """
    wanted = list(dict.fromkeys(split(name) for name in asked)) or [(kind, None) for kind in KINDS]
    present: dict[str, None] = {}
    absent: dict[str, str] = {}
    for kind, index in wanted:
        found, reason = find(kind, index, BACKENDS[kind])
        present.update(dict.fromkeys(found))
        if reason and asked:
            absent[kind if index is None else f"{kind}:{index}"] = reason
    return Resolved(tuple(present), tuple(Absent(device, reason) for device, reason in absent.items()))


def find(kind: str, index: int | None, asked: Backend) -> tuple[tuple[str, ...], str]:
    """The names of a backend's devices that are meant, or none and why."""
    reason = asked.absence()
    if reason:
        return (), reason
    names = asked.names()
    if index is None:
        return names, "" if names else f"this machine has no {kind.upper()} device"
    if index >= len(names):
        return (), f"this machine has {len(names)} {kind.upper()} {'device' if len(names) == 1 else 'devices'}"
    return (names[index],), ""


def split(device: str) -> tuple[str, int | None]:
    """A name's kind and index, None where it has none; ValueError names the nearest kind."""
    match = _FORM.fullmatch(device)
    if match is None or match["kind"] not in BACKENDS:
        raise ValueError(f"unknown device {device!r}; {_hint(device)}")
    return match["kind"], None if match["index"] is None else int(match["index"])


def _hint(device: str) -> str:
    word = device.partition(":")[0].lower()
    if word == "gpu":
        return "say which kind: cuda, mps or xpu"
    if word in _OTHER_NAMES:
        return f"torch's name is {_OTHER_NAMES[word]!r}"
    return f"write it like {' or '.join(KINDS)}, or cuda:0" if word in KINDS else nearest(word, KINDS)
