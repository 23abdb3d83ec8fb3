from __future__ import annotations

import pytest
import torch

from amp_probe.draw import LARGEST, SMALLEST, Draw, on_grid

LOW = (torch.float16, torch.bfloat16, torch.float32)


def streams(draw: Draw) -> dict[str, torch.Tensor]:
    return {
        "normal": draw.normal(200, 5),
        "wide": draw.normal(200, 5, scale=1e4),
        "tiny": draw.normal(200, 5, scale=1e-4),
        "uniform": draw.uniform(300, low=-1.0, high=3.0),
        "gain": draw.gain(300),
        "whole": draw.small_integers(300),
    }


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_every_value_is_exact_in_every_storage_dtype(dtype: torch.dtype) -> None:
    for name, values in streams(Draw("op.x")).items():
        assert values.dtype is torch.float64
        assert torch.equal(values.to(dtype).double(), values), name


def test_magnitudes_are_zero_or_within_the_grid() -> None:
    values = on_grid(torch.tensor([1e-9, 2.0**-15, 2.0**-14, 1.00390625, 1e9, -1e9], dtype=torch.float64))
    assert values.tolist() == [0.0, 0.0, SMALLEST, 1.0, LARGEST, -LARGEST]


def test_the_same_id_gives_the_same_values_and_another_gives_others() -> None:
    first = Draw("op.x", "base").normal(50)
    assert torch.equal(first, Draw("op.x", "base").normal(50))
    assert not torch.equal(first, Draw("op.x", "large").normal(50))
    assert not torch.equal(first, Draw("op.y", "base").normal(50))
    assert not torch.equal(first, Draw("op.x", "base", salt=1).normal(50))


def test_a_second_draw_goes_on_in_the_stream() -> None:
    draw = Draw("op.x")
    assert not torch.equal(draw.normal(50), draw.normal(50))


def test_the_values_of_an_id_are_fixed() -> None:
    assert Draw("op.x").small_integers(12).tolist() == [0, -1, 1, -2, 2, 2, 0, 1, -2, -2, 0, 0]


def test_inputs_are_never_all_zero() -> None:
    assert Draw("op.x").normal(3, scale=1e-30).tolist() == [1.0, 0.0, 0.0]
    assert Draw("op.x").uniform(low=0.0, high=1e-9).item() == 1.0


def test_full_mantissa_values_are_float32_and_no_less() -> None:
    values = Draw("op.x").full_mantissa(1000)
    assert torch.equal(values.float().double(), values)
    assert (values.bfloat16().double() != values).double().mean() > 0.98
    assert (values.half().double() != values).double().mean() > 0.98


def test_affine_weights_are_near_one_and_not_one() -> None:
    gain = Draw("op.x").gain(500)
    assert gain.min() >= 0.75
    assert gain.max() <= 1.25
    assert (gain != 1.0).double().mean() > 0.9


def test_integers_stay_in_their_range() -> None:
    values = Draw("op.x").integers(500, low=3, high=7)
    assert values.dtype is torch.int64
    assert set(values.tolist()) == {3, 4, 5, 6}
