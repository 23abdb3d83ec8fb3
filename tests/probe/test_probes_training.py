"""Copies, autocast, the scaler, optimizers, whole models: right here, and wrong where a kernel is wrong on purpose."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from amp_matrix.survey import Outcome, Stage
from amp_probe.draw import Draw
from amp_probe.probes import autocast, basic, optim, scaler, speed, train
from amp_probe.suite import Probe

Kernels = Mapping[str, Callable[..., Any]]
Cell = Callable[..., Outcome]

PROBES = {p.name: p for family in (basic, autocast, scaler, optim, train, speed) for p in family.PROBES}
SOUND = ("fp32", "bf16-mixed", "fp16-mixed")
_truly = torch.ops.aten


@pytest.fixture
def cell(run_case: Callable[..., Outcome]) -> Cell:
    """cell("optim.step", "bf16-mixed", "sgd", kernels={}): the outcome of a cell of a probe that ships."""

    def run(name: str, precision: str, variant: str = "base", kernels: Kernels | None = None) -> Outcome:
        draw = Draw(name, variant)
        return run_case(PROBES[name].make(draw), draw, precision, kernels)

    return run


def stage(outcome: Outcome, name: str) -> Stage:
    return next(s for s in outcome.stages if s.name == name)


def _sound() -> list[tuple[Probe, str, str]]:
    every = [(p, v, c) for p in PROBES.values() if not p.alone for v in p.variants for c in SOUND]
    return [(p, v, c) for p, v, c in every if c in p.precisions]


@pytest.mark.parametrize(
    ("probe", "variant", "precision"), [pytest.param(*x, id=f"{x[0].name}[{x[1]}]@{x[2]}") for x in _sound()]
)
def test_here_fp32_and_mixed_precisions_are_right(cell: Cell, probe: Probe, variant: str, precision: str) -> None:
    outcome = cell(probe.name, precision, variant)
    assert (outcome.status, outcome.reason) == ("ok", "")


@pytest.mark.parametrize("name", ["speed.train_step", "speed.infer"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp16-mixed", "bf16-true", "fp16-true"])
def test_every_timing_gives_an_interval(cell: Cell, name: str, precision: str) -> None:
    outcome = cell(name, precision)
    numbers = stage(outcome, "time").numbers
    assert outcome.status in ("ok", "emulated")
    assert 0.0 < numbers["gain_low"] <= numbers["gain"] <= numbers["gain_high"] < float("inf")
    assert numbers["seconds"] > 0.0


# --- what *-true really does


def test_a_tiny_update_vanishes_in_bfloat16_and_not_in_float16(cell: Cell) -> None:
    vanished = cell("optim.tiny_update", "bf16-true")
    assert (vanished.status, vanished.code) == ("inert", "unmoved")
    assert cell("optim.tiny_update", "fp16-true").status == "ok"


def test_adams_eps_is_lost_in_float16(cell: Cell) -> None:
    """pytorch#8860."""
    outcome = cell("optim.step", "fp16-true", "adamw")
    assert (outcome.status, outcome.code) == ("nonfinite", "format")


def test_a_scaler_refuses_float16_parameters_by_design(cell: Cell) -> None:
    """pytorch#74739."""
    outcome = cell("scaler.lifecycle", "fp16-true", "sgd")
    assert (outcome.status, outcome.stage) == ("unsupported", "unscale")


# --- copies


def _cast(rounding: Callable[[Tensor, torch.dtype], Tensor]) -> Kernels:
    """A device whose casts to a low dtype round as given."""

    def to_copy(x: Tensor, *, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
        if dtype in (torch.bfloat16, torch.float16) and x.dtype is torch.float32:
            return rounding(x, dtype)
        return _truly._to_copy(x, dtype=dtype, **kwargs)

    return {"aten::_to_copy": to_copy}


def _truncate(x: Tensor, dtype: torch.dtype) -> Tensor:
    drop = 16 if dtype is torch.bfloat16 else 13
    return _truly._to_copy((x.contiguous().view(torch.int32) >> drop << drop).view(torch.float32), dtype=dtype)


@pytest.mark.parametrize("precision", ["bf16-mixed", "fp16-true"])
def test_a_cast_that_truncates_is_seen(cell: Cell, precision: str) -> None:
    outcome = cell("copy.roundtrip", precision, kernels=_cast(_truncate))
    assert (outcome.status, outcome.stage) == ("inaccurate", "round")


def test_a_cast_that_loses_nan_is_seen(cell: Cell) -> None:
    kernels = _cast(lambda x, dtype: _truly._to_copy(x.nan_to_num(nan=0.0), dtype=dtype))
    outcome = cell("copy.roundtrip", "bf16-mixed", kernels=kernels)
    assert (outcome.status, outcome.stage) == ("inaccurate", "special")


def test_a_copy_that_takes_a_view_for_dense_is_seen(cell: Cell) -> None:
    def clone(x: Tensor, **kwargs: Any) -> Tensor:
        size, flat = x.numel(), x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
        return _truly.clone(flat[:size].view(x.shape) if len(flat) >= size else x)

    outcome = cell("copy.roundtrip", "fp32", kernels={"aten::clone": clone})
    assert (outcome.status, outcome.code) == ("inaccurate", "exact")


def test_a_write_that_spills_over_is_seen(cell: Cell) -> None:
    def copy(target: Tensor, source: Tensor, *args: Any) -> Tensor:
        if not target.is_contiguous():
            _truly.copy_(target.as_strided(target.shape, target.stride(), 0), source)
        return _truly.copy_(target, source, *args)

    outcome = cell("copy.roundtrip", "bf16-true", kernels={"aten::copy_": copy})
    assert (outcome.status, outcome.stage) == ("inaccurate", "write")
    assert "beside" in outcome.reason


# --- autocast


def test_a_region_that_is_never_left_is_seen(cell: Cell) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        outcome = cell("autocast.applies", "bf16-mixed")
    assert (outcome.status, outcome.stage, outcome.code) == ("error", "leave", "stays")


def test_float32_under_autocast_is_inert(cell: Cell) -> None:
    kernels = {"aten::mm": lambda a, b: _truly.mm(a.float(), b.float())}
    outcome = cell("autocast.applies", "bf16-mixed", kernels=kernels)
    assert (outcome.status, outcome.stage) == ("inert", "infer")
    assert "float32, asked for bfloat16" in outcome.reason


def test_bfloat16_under_the_name_of_float16_is_inaccurate(cell: Cell) -> None:
    kernels = {"aten::mm": lambda a, b: _truly.mm(a.bfloat16(), b.bfloat16()).to(a.dtype)}
    assert cell("autocast.applies", "fp16-mixed", kernels=kernels).status == "inaccurate"


# --- optimizers


@pytest.mark.parametrize("precision", ["fp32", "bf16-true"])
def test_a_norm_that_is_wrong_is_seen(cell: Cell, precision: str) -> None:
    kernels = {"aten::linalg_vector_norm": lambda x, *a, **k: _truly.linalg_vector_norm(x, *a, **k) * 1.05}
    outcome = cell("optim.clip", precision, kernels=kernels)
    assert (outcome.status, outcome.stage) == ("inaccurate", "clip")


def test_a_gradient_below_the_limit_must_stay_what_it_is(cell: Cell) -> None:
    kernels = {
        "aten::mul_": lambda x, factor: _truly.mul_(x, factor * (1 + 2e-6)),
        "aten::_foreach_mul_": lambda all_of, factor: _truly._foreach_mul_(all_of, factor * (1 + 2e-6)),
    }
    outcome = cell("optim.clip", "fp32", kernels=kernels)
    assert (outcome.status, outcome.stage, outcome.code) == ("inaccurate", "below", "exact")


def test_an_update_that_is_dropped_is_inert(cell: Cell) -> None:
    outcome = cell("optim.step", "fp32", "sgd", {"aten::add_": lambda x, *a, **k: x})
    assert (outcome.status, outcome.code) == ("inert", "unmoved")


def test_state_that_is_not_kept_is_seen(cell: Cell) -> None:
    outcome = cell("optim.step", "bf16-mixed", "adamw", {"aten::lerp_": lambda x, *a, **k: x})
    assert outcome.status == "inaccurate"
    assert any("exp_avg" in e.name and e.n > e.n_limit for e in stage(outcome, "step").errors)


def test_another_dtype_behind_the_asked_one_is_seen(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast's own linear goes through bfloat16 and hands float16 out: the ideal run would follow it there."""
    linear = torch.nn.functional.linear

    def detour(*args: Tensor) -> Tensor:
        if not torch.is_autocast_enabled("cpu"):
            return linear(*args)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return linear(*args).half()

    monkeypatch.setattr(torch.nn.functional, "linear", detour)
    outcome = cell("autocast.applies", "fp16-mixed", "linear")
    assert (outcome.status, outcome.stage) == ("inaccurate", "infer")


# --- the scaler


def _unscale(found: bool, factor: float) -> Kernels:
    """A device that looks for infinities, or not, and multiplies unscaled gradients by a factor."""

    def kernel(gradients: list[Tensor], found_inf: Tensor, inverse: Tensor) -> None:
        seen = torch.zeros_like(found_inf)
        _truly._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf if found else seen, inverse * factor)

    return {"aten::_amp_foreach_non_finite_check_and_unscale_": kernel}


@pytest.mark.parametrize("variant", ["sgd", "adamw"])
@pytest.mark.parametrize("factor", [0.0, 0.5, 1.01, 1.0 + 2.0**-12])
def test_unscaling_that_changes_gradients_is_seen(cell: Cell, variant: str, factor: float) -> None:
    """pytorch#184286: zeroed in silence."""
    outcome = cell("scaler.lifecycle", "fp16-mixed", variant, _unscale(True, factor))
    assert (outcome.status, outcome.stage) == ("inaccurate", "unscale")


@pytest.mark.parametrize("variant", ["sgd", "adamw"])
def test_an_infinite_gradient_that_moves_parameters_is_seen(cell: Cell, variant: str) -> None:
    """pytorch#186360."""
    outcome = cell("scaler.lifecycle", "fp16-mixed", variant, _unscale(False, 1.0))
    wrong = stage(outcome, "inf_step")
    assert (wrong.status, wrong.code) == ("inaccurate", "moved")
    assert stage(outcome, "step").status == "ok"


def test_a_scale_that_never_changes_is_seen(cell: Cell) -> None:
    kernels = {"aten::_amp_update_scale_": lambda scale, *a: scale}
    outcome = cell("scaler.lifecycle", "fp16-mixed", "sgd", kernels)
    assert (outcome.status, outcome.stage, outcome.code) == ("inaccurate", "inf_step", "scale")


def test_a_scale_that_never_grows_is_seen(cell: Cell) -> None:
    def kernel(scale: Tensor, tracker: Tensor, found: Tensor, growth: float, backoff: float, interval: int) -> Tensor:
        return scale.mul_(backoff) if found.item() else scale

    outcome = cell("scaler.lifecycle", "fp16-mixed", "sgd", {"aten::_amp_update_scale_": kernel})
    assert (outcome.status, outcome.stage, outcome.code) == ("inaccurate", "growth", "scale")


def test_a_loss_that_is_not_scaled_exactly_is_seen(cell: Cell) -> None:
    def mul(a: Tensor, b: Tensor) -> Tensor:
        return _truly.mul(a, b * 1.001 if b.dim() == 0 else b)

    outcome = cell("scaler.lifecycle", "fp16-mixed", "sgd", {"aten::mul": mul})
    assert (stage(outcome, "scale").status, stage(outcome, "scale").code) == ("inaccurate", "exact")


def test_a_micro_batch_that_is_not_added_is_seen(cell: Cell) -> None:
    def add(x: Tensor, other: Tensor, **kwargs: Any) -> Tensor:
        return _truly.add_(x, other, **kwargs) if kwargs else x

    outcome = cell("scaler.lifecycle", "fp16-mixed", "sgd", {"aten::add_": add})
    assert (outcome.status, outcome.stage) == ("inaccurate", "accumulation")


def test_a_scaler_that_needs_float64_on_the_device_names_its_stage(cell: Cell) -> None:
    """pytorch#142397."""

    def kernel(*args: Any) -> None:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")

    kernels = {"aten::_amp_foreach_non_finite_check_and_unscale_": kernel}
    outcome = cell("scaler.lifecycle", "fp16-mixed", "adamw", kernels)
    assert (outcome.status, outcome.stage) == ("error", "unscale")


@pytest.mark.parametrize("blind", ["but_first", "nan", "negative"])
def test_a_scaler_that_overlooks_some_infinities_is_seen(cell: Cell, blind: str) -> None:
    def kernel(gradients: list[Tensor], found_inf: Tensor, inverse: Tensor) -> None:
        seen = torch.zeros_like(found_inf)
        _truly._amp_foreach_non_finite_check_and_unscale_(gradients, seen, inverse)
        looked = gradients[:1] if blind == "but_first" else gradients
        odd = {
            "but_first": lambda g: ~g.isfinite(),
            "nan": torch.isinf,
            "negative": lambda g: g.isnan() | (g == math.inf),
        }
        if any(bool(odd[blind](g).any()) for g in looked):
            found_inf.fill_(1.0)

    kernels = {"aten::_amp_foreach_non_finite_check_and_unscale_": kernel}
    outcome = cell("scaler.lifecycle", "fp16-mixed", "sgd", kernels)
    assert (outcome.status, outcome.stage) == ("inaccurate", "inf_step")


# --- whole models


@pytest.mark.parametrize("precision", SOUND)
def test_an_embedding_without_gradients_is_seen(cell: Cell, precision: str) -> None:
    def dense(grad: Tensor, *args: Any) -> Tensor:
        return torch.zeros_like(_truly.embedding_dense_backward(grad, *args))

    outcome = cell("grads.finite", precision, kernels={"aten::embedding_dense_backward": dense})
    assert (outcome.status, outcome.stage, outcome.code) == ("inaccurate", "backward", "zero_gradient")


@pytest.mark.parametrize("precision", SOUND)
def test_a_softmax_that_is_slightly_wrong_is_seen_in_inference(cell: Cell, precision: str) -> None:
    kernels = {"aten::_softmax": lambda *a: _truly._softmax(*a) * 1.25}
    outcome = cell("infer.transformer", precision, kernels=kernels)
    assert (outcome.status, outcome.stage) == ("inaccurate", "infer")


@pytest.mark.parametrize("precision", SOUND)
def test_a_softmax_backward_that_is_wrong_is_seen_in_training(cell: Cell, precision: str) -> None:
    kernels = {"aten::_softmax_backward_data": lambda *a: _truly._softmax_backward_data(*a) * 0.5}
    outcome = cell("train.transformer", precision, kernels=kernels)
    assert (outcome.status, outcome.stage) == ("inaccurate", "step0")
