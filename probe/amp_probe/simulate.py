"""Autocast's policy for a device that is not here, in a worker: fake tensors and the dispatcher's registrations.

Forward only, on the operators of `policy`: a fake backward pass, and batch norm, abort the process on mps.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from amp_matrix.environment.common import architecture
from amp_matrix.precision import Precision
from amp_matrix.survey import Environment, Outcome, Stage
from amp_probe import policy, precisions
from amp_probe.scrub import scrub

KEYS = {"mps": "AutocastMPS", "cuda": "AutocastCUDA", "xpu": "AutocastXPU", "cpu": "AutocastCPU"}
UNKNOWN = "unknown"
"""Stands for a dtype that only a device could tell."""
_BY_DESIGN = "unsafe to autocast"
_NOTE = 380


def environment(kind: str) -> Environment:
    """What a simulated survey of a kind of device holds for: this build of torch, and no device at all.

    No real device's identity has the field `simulated`, so nothing that is chosen rests on such a survey.
    """
    identity = {
        "device": kind,
        "torch": str(torch.__version__),
        "torch_git": str(torch.version.git_version or ""),
        "simulated": "yes",
    }
    return Environment(identity=identity, recorded={"simulated": f"simulated on {architecture()}"})


def outcome(kind: str, precision: Precision, announce: Callable[[str], None]) -> Outcome:
    """The policy of a kind of device in a mixed precision, without a status; each stage's name is announced.

    Stages: `enter` (what torch.autocast itself does here), one for each of policy.INPUTS, `registrations`.
    """
    low, device = precisions.low(precision), torch.device(kind)
    announce("enter")
    stages, notes = [_enter(kind, low)], list[str]()
    for inputs in policy.INPUTS:
        announce(inputs)
        with autocast_on(kind, low), FakeTensorMode(), torch.no_grad():
            seen = policy.observe(inputs, device, low, fake=True)
        stages.append(Stage(name=inputs, status=None, dtypes=_told(seen)))
        notes += [f"{name}, {inputs}: {said}" for name, said in seen.refusals.items()]
    announce("registrations")
    known = registrations(kind)
    stages.append(Stage(name="registrations", status=None, numbers={"registered": float(len(known))}))
    notes += textwrap.wrap(f"{KEYS[kind]} knows {' '.join(known)}", _NOTE, break_on_hyphens=False)
    return Outcome(status=None, stages=tuple(stages), notes=tuple(notes))


def registrations(kind: str) -> tuple[str, ...]:
    """The names of the ATen operators that a kind of device's autocast handles in this build of torch, sorted."""
    found = torch._C._dispatch_get_registrations_for_dispatch_key(KEYS[kind])
    return tuple(sorted(name.removeprefix("aten::") for name in found))


@contextmanager
def autocast_on(kind: str, low: torch.dtype) -> Iterator[None]:
    """Autocast for a kind of device, set past torch.autocast, which turns itself off where the device is missing."""
    before = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    try:
        torch.set_autocast_enabled(kind, True)
        torch.set_autocast_dtype(kind, low)
        yield
    finally:
        torch.set_autocast_enabled(kind, before[0])
        torch.set_autocast_dtype(kind, before[1])
        torch.clear_autocast_cache()


def _enter(kind: str, low: torch.dtype) -> Stage:
    """What torch.autocast says and does when it is asked for a device that is not here."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with torch.autocast(kind, dtype=low):
                on, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        except Exception as error:  # noqa: BLE001 -- torch 2.6 to 2.10 ask a Mac and raise (pytorch#139190)
            said = f"{type(error).__name__}: {scrub(str(error))}"
            return Stage(name="enter", status=None, reason=f"torch.autocast refuses: {said}", code="refused")
    said = f": {scrub(str(caught[0].message))}" if caught else ""
    if not on:
        return Stage(name="enter", status=None, reason=f"torch.autocast turned itself off{said}", code="autocast_off")
    return Stage(name="enter", status=None, dtypes={"autocast": precisions.name(dtype)})


def _told(seen: policy.Seen) -> dict[str, str]:
    """The dtypes, with UNKNOWN where an operator raised for want of a device and not by autocast's design."""
    gaps = {name: UNKNOWN for name, said in seen.refusals.items() if _BY_DESIGN not in said}
    return seen.dtypes | gaps
