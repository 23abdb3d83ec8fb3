"""Times work in a precision against fp32: interleaved repeats in one cell, and an interval of their ratios."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import torch

from amp_matrix.precision import Precision
from amp_matrix.survey import Status
from amp_probe import devices
from amp_probe.case import Timing
from amp_probe.harness.script import Lab

if TYPE_CHECKING:
    from torch.utils.benchmark import Timer

REPEATS, FEWEST = 9, 5
BLOCK = 0.001
"""Seconds that a repeat's runs take at least."""
BUDGET = 0.08
"""Seconds of repeats after which FEWEST are enough."""
HOPELESS = 0.2
EMULATED = 0.8
"""Multiples of fp32's speed: below the first two repeats are enough, below the second a precision is not native."""


class Gain(NamedTuple):
    """How many times as fast as fp32: the median of the repeats' ratios, and an interval for it."""

    point: float
    low: float
    high: float

    @property
    def emulated(self) -> bool:
        """Whether the precision is slower than fp32 beyond doubt, so not native."""
        return self.high < EMULATED


@dataclass
class _Side:
    """One precision's work under a timer, its seconds a run, and the most memory that building and running it took."""

    timer: Timer
    runs: int
    peak: int
    seconds: list[float]

    def measure(self) -> float:
        """Time the runs of one repeat; gives seconds a run. The timer does two more first, as caches are another's."""
        self.seconds.append(float(self.timer.timeit(self.runs).mean))
        return self.seconds[-1]


def run_timing(case: Timing, lab: Lab) -> None:
    """Time the work on the lab: stages `build` (both precisions, warm) and `time`, which holds the numbers.

    `gain`, `gain_low` and `gain_high` are multiples of fp32's speed; `seconds` and `seconds_fp32` are medians;
    `threads` is torch's; `peak_bytes` stands where the device has memory of its own. The fp32 cell's gain is 1.
    """
    with lab.stage("build"):
        own = _build(case, lab)
        other = own
        if lab.precision.compute != "fp32":
            other = _build(case, replace(lab, precision=Precision("fp32")))
    with lab.stage("time") as draft:
        ratios = _interleave(own, other)
        found = gain(ratios)
        draft.numbers |= {"gain": found.point, "gain_low": found.low, "gain_high": found.high}
        draft.numbers |= {"seconds": statistics.median(own.seconds), "seconds_fp32": statistics.median(other.seconds)}
        draft.numbers |= {"repeats": len(ratios), "threads": torch.get_num_threads()}
        if own.peak and other.peak:
            draft.numbers |= {"peak_bytes": own.peak, "peak_bytes_fp32": other.peak}
        if case.products and found.emulated:
            reason = f"{found.point:.2g} times fp32's speed ({found.low:.2g} to {found.high:.2g})"
            draft.fail(Status.EMULATED, reason, "slow")


def gain(ratios: Sequence[float]) -> Gain:
    """The median of at least one ratio, and an interval for it that assumes nothing of how times scatter.

    From 9 repeats on it runs from the second smallest to the second largest, which holds the true median in 96% of
    runs; with fewer, from the smallest to the largest (8: 99%, 5: 94%, 3: 75%, 2: 50%).
    """
    ordered = sorted(ratios)
    end = 1 if len(ordered) >= REPEATS else 0
    return Gain(statistics.median(ordered), ordered[end], ordered[-1 - end])


def _build(case: Timing, lab: Lab) -> _Side:
    """Build the work and run it twice: the first run compiles kernels and fills caches."""
    from torch.utils.benchmark import Timer  # 0.1 s, and few workers time anything

    def now() -> float:
        lab.synchronize()
        return perf_counter()

    backend, own = devices.backend(str(lab.device)), lab.device.type != "cpu"
    backend.reset_peak(lab.device)
    before = backend.peak_bytes(lab.device) if own else 0
    work = case.build(lab)
    work()
    started = now()
    work()
    runs = max(1, round(BLOCK / (now() - started)))
    peak = backend.peak_bytes(lab.device) - before if own else 0
    timer = Timer("work()", globals={"work": work}, timer=now, num_threads=torch.get_num_threads())
    return _Side(timer, runs, max(peak, 0), [])


def _interleave(own: _Side, other: _Side) -> list[float]:
    """fp32's time over the precision's, repeat by repeat; what goes first alternates, so that a drift cancels.

    Past the budget it stops at FEWEST repeats, and at 2 where the precision is slower beyond doubt.
    """
    if own is other:
        own.measure()
        return [1.0]
    ratios: list[float] = []
    started = perf_counter()
    while len(ratios) < REPEATS and not _enough(ratios, perf_counter() - started):
        for side in (own, other) if len(ratios) % 2 else (other, own):
            side.measure()
        ratios.append(other.seconds[-1] / own.seconds[-1])
    return ratios


def _enough(ratios: Sequence[float], spent: float) -> bool:
    if spent < BUDGET:
        return False
    return len(ratios) >= FEWEST or (len(ratios) >= 2 and max(ratios) < HOPELESS)
