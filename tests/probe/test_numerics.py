from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from amp_matrix.survey import Status
from amp_probe.numerics import LIMITS, compare, gradient_floor, measure

BF16 = 2.0**-7
FP32 = 2.0**-23


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.float64)


def test_n_is_the_relative_norm_of_the_error_in_eps() -> None:
    reference = torch.tensor([3.0, 4.0], dtype=torch.float64)
    got = reference + torch.tensor([0.0, 0.05], dtype=torch.float64)
    assert measure(got, reference, BF16).n == pytest.approx(0.01 / BF16)
    assert measure(got, reference, BF16, floor=1.0).n == pytest.approx(0.05 / (5.0 + math.sqrt(2)) / BF16)


def test_s_is_the_worst_slice_along_any_dim() -> None:
    reference, got = ones(64, 64), ones(64, 64)
    got[:, 5] = 1.5
    norm = 8.0
    assert measure(got, reference, BF16).s == pytest.approx(0.5 * norm / (norm + 0.01 * norm) / BF16)
    assert measure(got.T, reference, BF16).s == measure(got, reference, BF16).s


def test_slices_of_fewer_than_32_elements_do_not_count() -> None:
    one_of_31, one_of_32 = ones(4, 31), ones(4, 32)
    one_of_31[3], one_of_32[3] = 1.5, 1.5
    assert measure(one_of_31, ones(4, 31), BF16).s == 0.0
    assert measure(one_of_32, ones(4, 32), BF16).s == pytest.approx(0.5 / 1.01 / BF16)
    assert measure(2 * ones(31), ones(31), BF16).s == 0.0
    assert measure(2 * ones(32, 1), ones(32, 1), BF16).s > 0.0


def test_nothing_off_is_zero_even_for_an_all_zero_reference() -> None:
    zeros = torch.zeros(64, 64, dtype=torch.float64)
    assert measure(zeros, zeros, BF16) == (0.0, 0.0)
    assert measure(ones(64, 64), zeros, BF16) == (math.inf, math.inf)


def test_a_zero_gradient_is_measured_against_the_largest_of_the_cell() -> None:
    floor = gradient_floor([10.0 * ones(100), torch.zeros(4, dtype=torch.float64)])
    assert floor == pytest.approx(0.01)
    noise = 1e-4 * ones(64, 64)
    assert measure(noise, torch.zeros(64, 64, dtype=torch.float64), BF16, floor).n == pytest.approx(0.01 / BF16)
    assert measure(noise, torch.zeros(64, 64, dtype=torch.float64), BF16, floor).s == pytest.approx(0.01 / BF16)


def off(by: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor that is this many bf16 eps off a reference of ones, everywhere."""
    return ((1.0 + by * BF16) * ones(40, 40)).to(dtype)


@pytest.mark.parametrize(("by", "status"), [(1.49, Status.OK), (1.51, Status.INACCURATE)])
def test_the_smallest_limit_holds_without_an_ideal(by: float, status: Status) -> None:
    judgement = compare("output", off(by), ones(40, 40), BF16)
    assert judgement.status is status
    assert (judgement.error.n_limit, judgement.error.s_limit) == (1.5, 2.0)


def test_the_ideal_is_asked_for_only_over_the_smallest_limits() -> None:
    def never() -> Tensor:
        raise AssertionError("asked for")

    assert compare("output", off(1.4), ones(40, 40), BF16, never).status is Status.OK
    with pytest.raises(AssertionError):
        compare("output", off(1.6), ones(40, 40), BF16, never)


@pytest.mark.parametrize(("by", "status"), [(5.9, Status.OK), (6.1, Status.INACCURATE)])
def test_the_limit_is_three_times_what_the_ideal_loses(by: float, status: Status) -> None:
    judgement = compare("output", off(by), ones(40, 40), BF16, lambda: off(2.0))
    assert judgement.status is status
    assert judgement.error.n_limit == pytest.approx(6.0)


def test_a_single_bad_slice_is_judged_against_the_ideals_slices() -> None:
    got = ones(64, 64)
    got[7] += 3 * BF16
    judgement = compare("output", got, ones(64, 64), BF16, ones(64, 64))
    assert judgement.status is Status.INACCURATE
    assert judgement.code == "s"
    assert judgement.error.n < 0.5


@pytest.mark.parametrize(("by", "status"), [(3.9, Status.OK), (4.1, Status.INACCURATE)])
def test_where_the_ideal_kept_a_device_value_the_limit_is_four(by: float, status: Status) -> None:
    assert compare("output", off(by), ones(40, 40), BF16, lambda: None).status is status


def test_an_ideal_that_is_a_quarter_off_makes_the_cell_ill_conditioned() -> None:
    judgement = compare("output", off(50), ones(40, 40), BF16, lambda: off(33))
    assert judgement.status is Status.NOT_RUN
    assert judgement.code == "ill_conditioned"
    assert compare("output", off(50), ones(40, 40), BF16, lambda: off(31)).status is Status.OK


@pytest.mark.parametrize(("by", "status"), [(63, Status.OK), (65, Status.INACCURATE)])
@pytest.mark.parametrize("ideal", [None, lambda: None, lambda: ones(40, 40), lambda: (1.0 + 21 * FP32) * ones(40, 40)])
def test_fp32_has_a_limit_of_its_own(by: float, status: Status, ideal: Callable[[], Tensor | None] | None) -> None:
    got = (1.0 + by * FP32) * ones(40, 40)
    judgement = compare("output", got, ones(40, 40), FP32, ideal)
    assert judgement.status is status
    assert judgement.error.n_limit == LIMITS.fp32_n


@pytest.mark.parametrize(("by", "status"), [(299, Status.OK), (301, Status.INACCURATE)])
def test_fp32_is_forgiven_what_a_perfect_implementation_loses(by: float, status: Status) -> None:
    got, best = ((1.0 + x * FP32) * ones(40, 40) for x in (by, 100))
    judgement = compare("output", got, ones(40, 40), FP32, lambda: best)
    assert judgement.status is status
    assert judgement.error.n_limit == pytest.approx(300)


def test_exact_means_equal() -> None:
    got = ones(40, 40)
    assert compare("output", got, ones(40, 40), BF16, exact=True).status is Status.OK
    got[3, 3] += 2.0**-40
    judgement = compare("output", got, ones(40, 40), BF16, exact=True)
    assert (judgement.status, judgement.code) == (Status.INACCURATE, "exact")


def test_another_shape_is_inaccurate() -> None:
    judgement = compare("output", ones(4, 1), ones(4), BF16)
    assert (judgement.status, judgement.code) == (Status.INACCURATE, "shape")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_or_inf_is_the_backends_unless_the_ideal_has_it_too(bad: float) -> None:
    got, best = off(0), off(0)
    got[1, 1] = bad
    assert compare("output", got, ones(40, 40), BF16, lambda: best).code == "backend"
    assert compare("output", got, ones(40, 40), BF16).code == "backend"
    judgement = compare("output", got, ones(40, 40), BF16, lambda: got)
    assert (judgement.status, judgement.code) == (Status.NONFINITE, "format")


def test_what_the_dtype_cannot_hold_is_not_held_against_it() -> None:
    reference = ones(40, 40)
    reference[0, 0] = 1e6
    got = reference.half()
    assert got[0, 0].isinf()
    assert compare("output", got, reference, 2.0**-10).status is Status.OK
    assert compare("output", got.bfloat16(), reference, BF16).status is Status.NONFINITE


def test_a_nan_of_the_reference_must_be_there() -> None:
    reference = ones(40, 40)
    reference[2] = math.nan
    assert compare("output", reference.float(), reference, BF16).status is Status.OK
    judgement = compare("output", off(0), reference, BF16)
    assert (judgement.status, judgement.code) == (Status.INACCURATE, "swallowed")


@pytest.mark.parametrize(
    ("got", "right"),
    [
        ([-math.inf, 1.0], [math.inf, 1.0]),
        ([math.inf, 1.0], [math.nan, 1.0]),
        ([math.nan, 1.0], [1e5, 1.0]),
        ([40000.0, 1.0], [1e5, 1.0]),
        ([math.nan, 1.0], [math.inf, 1.0]),
        ([3.0, 1.0], [1e5, 1.0]),
        ([-math.inf, 1.0], [1e5, 1.0]),
        ([65504.0, 1.0], [-1e5, 1.0]),
    ],
)
def test_what_cannot_be_compared_must_be_of_the_same_kind(got: list[float], right: list[float]) -> None:
    judged = compare("x", torch.tensor(got, dtype=torch.float16), torch.tensor(right).double(), 2.0**-10)
    assert (judged.status, judged.code) == (Status.INACCURATE, "infinity")


@pytest.mark.parametrize("got", [math.inf, 65504.0, 65440.0])
def test_beyond_the_format_infinity_and_saturation_are_its_own(got: float) -> None:
    right = torch.tensor([1e5, 1.0]).double()
    assert compare("x", torch.tensor([got, 1.0], dtype=torch.float16), right, 2.0**-10).status is Status.OK


@pytest.mark.parametrize(
    ("best", "status"), [(math.nan, Status.OK), (math.inf, Status.INACCURATE), (None, Status.INACCURATE)]
)
def test_beyond_the_format_nan_is_right_only_where_the_ideal_has_it(best: float | None, status: Status) -> None:
    right, got = torch.tensor([1e5, 1.0]).double(), torch.tensor([math.nan, 1.0], dtype=torch.float16)
    ideal = None if best is None else torch.tensor([best, 1.0])
    assert compare("x", got, right, 2.0**-10, lambda: ideal).status is status


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_reference_that_judges_nothing_is_the_probes_mistake(value: float) -> None:
    right = torch.full((4,), value, dtype=torch.float64)
    with pytest.raises(ValueError, match="nothing is judged"):
        compare("x", right.half(), right, 2.0**-10)
    assert compare("x", right[:0].half(), right[:0], 2.0**-10).status is Status.OK
    assert compare("x", right.half(), right, 2.0**-10, beside=True).status is Status.OK
    assert compare("x", right.half().zero_(), right, 2.0**-10, beside=True).status is Status.INACCURATE


def test_without_an_ideal_one_bad_row_still_shows() -> None:
    right = torch.ones(64, 64).double()
    got = right.clone()
    got[5] *= 1.2
    judged = compare("x", got.bfloat16(), right, 2.0**-7, lambda: None)
    assert (judged.status, judged.code) == (Status.INACCURATE, "s")
