"""Probes that break their process in every way a real one has been seen to. For tests only."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import torch

from amp_probe.case import Op, Script
from amp_probe.harness.script import Lab
from amp_probe.numerics import Draw
from amp_probe.suite import Probe


class Odd(BaseException):
    """Not an Exception: what a careless `except Exception` misses."""


def segfault() -> None:
    ctypes.string_at(0)


def abort() -> None:
    os.abort()


def illegal_instruction() -> None:
    os.kill(os.getpid(), signal.SIGILL)
    time.sleep(5)


def exit_0() -> None:
    os._exit(0)


def loop() -> None:
    while True:
        pass


def allocate() -> None:
    kept = []
    while True:
        kept.append(torch.ones(16 << 20))


def hold_gil() -> None:
    ctypes.PyDLL(None).sleep(3600)


def orphan() -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)


def print_1_gb() -> None:
    block = b"x" * (1 << 20)
    for _ in range(1024):
        os.write(1, block)


def base_exception() -> None:
    raise Odd("not an Exception")


def leave_thread() -> None:
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()


def poison() -> None:
    """Make every later product on this device wrong, then fail as a poisoned CUDA context would."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("mm", lambda a, b: torch.full((a.shape[0], b.shape[1]), 0.5, dtype=a.dtype), "CPU")
    poison.kept = library  # type: ignore[attr-defined]
    raise RuntimeError("device-side assert triggered")


def change_state() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_autocast_enabled("cpu", True)
    torch.set_num_threads(2)
    torch.manual_seed(7)
    torch.set_flush_denormal(True)
    os.environ["AMP_PROBE_TEST_LEFT_BEHIND"] = "1"


FAULTS = {
    "segfault": ("crash", segfault),
    "abort": ("crash", abort),
    "illegal_instruction": ("crash", illegal_instruction),
    "exit_0": ("crash", exit_0),
    "loop": ("timeout", loop),
    "allocate": ("not_run", allocate),
    "hold_gil": ("timeout", hold_gil),
    "orphan": ("ok", orphan),
    "print_1_gb": ("ok", print_1_gb),
    "base_exception": ("error", base_exception),
    "leave_thread": ("ok", leave_thread),
    "poison": ("error", poison),
    "change_state": ("ok", change_state),
}
"""Each fault's name, with the status its cell must have on a Linux CPU."""

TIMEOUTS = {"allocate": 20.0}
"""Wall seconds where not 3: memory without huge pages takes seconds a GiB to touch on a busy machine."""


def _fault(draw: Draw) -> Script:
    body = FAULTS[draw.probe.removeprefix("fault.")][1]

    def run(lab: Lab) -> None:
        with lab.stage("before"):
            torch.ones(2) + 1
        with lab.stage("fault"):
            body()

    return Script(run)


def _innocent(draw: Draw) -> Op:
    """A small product: what stands after each fault, and must come out the same."""
    from amp_probe.case import Arg

    return Op(lambda a, b: a @ b, {"a": Arg(draw.normal(8, 16), grad=True), "b": Arg(draw.normal(16, 4), grad=True)})


INNOCENT = tuple(Probe(f"innocent.after_{name}", _innocent, precisions=("fp32", "bf16-mixed")) for name in FAULTS)
PROBES = tuple(
    probe
    for name, innocent in zip(FAULTS, INNOCENT, strict=True)
    for probe in (Probe(f"fault.{name}", _fault, precisions=("fp32",), timeout=TIMEOUTS.get(name, 3.0)), innocent)
)
