"""Timings: the interval of some ratios, and what is called emulated."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_matrix.survey import Outcome
from amp_probe.case import Timing
from amp_probe.draw import Draw
from amp_probe.harness.script import Lab
from amp_probe.harness.timing import REPEATS, Gain, gain

DRAW = Draw("test.timing")
ratios = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=15)


def sleeping(own: float, fp32: float) -> Timing:
    """Work that takes so many seconds in a precision, and in fp32."""

    def build(lab: Lab) -> Callable[[], None]:
        seconds = fp32 if lab.precision.compute == "fp32" else own
        return lambda: time.sleep(seconds)

    return Timing(build)


@given(ratios)
def test_the_interval_holds_the_median_and_is_made_of_ratios_seen(seen: list[float]) -> None:
    found = gain(seen)
    assert found.low <= found.point <= found.high
    assert {found.low, found.high} <= set(seen)


@given(ratios)
def test_the_order_of_repeats_says_nothing(seen: list[float]) -> None:
    assert gain(seen) == gain(seen[::-1])


@given(st.lists(st.floats(0.9, 1.1), min_size=REPEATS - 1, max_size=14), st.sampled_from([1e-3, 1e3]))
def test_one_disturbed_repeat_of_many_does_not_move_the_interval_out(seen: list[float], odd: float) -> None:
    found = gain([*seen, odd])
    assert 0.9 <= found.low <= found.high <= 1.1


def test_few_repeats_give_the_whole_range() -> None:
    assert gain([1.0, 3.0, 2.0]) == (2.0, 1.0, 3.0)


def test_only_what_is_slower_beyond_doubt_is_emulated() -> None:
    assert Gain(0.5, 0.4, 0.79).emulated
    assert not Gain(0.5, 0.4, 0.81).emulated


def test_what_goes_first_alternates(run_case: Callable[..., Outcome]) -> None:
    calls: list[str] = []

    def build(lab: Lab) -> Callable[[], None]:
        def work() -> None:
            calls.append(lab.precision.compute)
            time.sleep(0.003)

        return work

    repeats = run_case(Timing(build), DRAW, "bf16-mixed").stages[-1].numbers["repeats"]
    switches = sum(a != b for a, b in itertools.pairwise(calls))
    assert switches == 1 + repeats  # one in build, one in each repeat, none between repeats


def test_slower_beyond_doubt_is_emulated_after_few_repeats(run_case: Callable[..., Outcome]) -> None:
    outcome = run_case(sleeping(0.03, 0.001), DRAW, "bf16-mixed")
    assert (outcome.status, outcome.stage) == ("emulated", "time")
    numbers = outcome.stages[-1].numbers
    assert numbers["gain_high"] < 0.2
    assert numbers["repeats"] < 5
    assert numbers["seconds"] == pytest.approx(0.03, rel=0.5)


def test_a_little_slower_is_emulated_too(run_case: Callable[..., Outcome]) -> None:
    outcome = run_case(sleeping(0.012, 0.004), DRAW, "bf16-mixed")
    assert outcome.status == "emulated"
    assert outcome.stages[-1].numbers["repeats"] >= 5


def test_faster_is_a_gain(run_case: Callable[..., Outcome]) -> None:
    outcome = run_case(sleeping(0.004, 0.012), DRAW, "bf16-mixed")
    numbers = outcome.stages[-1].numbers
    assert outcome.status == "ok"
    assert 1.1 < numbers["gain_low"] <= numbers["gain"] <= numbers["gain_high"]
    assert numbers["threads"] == 1


def test_equal_work_is_neither_a_gain_nor_emulated(run_case: Callable[..., Outcome]) -> None:
    outcome = run_case(sleeping(0.005, 0.005), DRAW, "bf16-mixed")
    numbers = outcome.stages[-1].numbers
    assert outcome.status == "ok"
    assert numbers["gain_low"] < 1.1
    assert numbers["gain_high"] > 0.8


def test_fp32_against_itself_gains_nothing(run_case: Callable[..., Outcome]) -> None:
    built: list[str] = []

    def build(lab: Lab) -> Callable[[], None]:
        built.append(str(lab.precision))
        return lambda: None

    numbers = run_case(Timing(build), DRAW, "fp32").stages[-1].numbers
    assert (numbers["gain"], numbers["gain_low"], numbers["gain_high"]) == (1.0, 1.0, 1.0)
    assert built == ["fp32"]


def test_work_that_raises_stops_in_build(run_case: Callable[..., Outcome]) -> None:
    def build(lab: Lab) -> Callable[[], None]:
        raise RuntimeError("\"addmm\" not implemented for 'Half'")

    outcome = run_case(Timing(build), DRAW, "fp16-true")
    assert (outcome.status, outcome.stage) == ("unsupported", "build")
