"""Optimizers and clipping: right in float32, lost where a format ends, and wrong where a kernel is wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amp_matrix.survey import Outcome
from amp_probe.draw import Draw
from amp_probe.probes import clipping, optim_forms
from amp_probe.suite import Probe

Kernels = Mapping[str, Callable[..., Any]]
Cell = Callable[..., Outcome]

PROBES = {p.name: p for family in (optim_forms, clipping) for p in family.PROBES}
_truly = torch.ops.aten


@pytest.fixture
def cell(run_case: Callable[..., Outcome]) -> Cell:
    """cell("optim.eps", "fp16-true", "adam", kernels={}): the outcome of a cell of a probe that ships."""

    def run(name: str, precision: str, variant: str = "base", kernels: Kernels | None = None) -> Outcome:
        draw = Draw(name, variant)
        return run_case(PROBES[name].make(draw), draw, precision, kernels)

    return run


@pytest.mark.parametrize(
    ("probe", "variant"),
    [pytest.param(p, v, id=f"{p.name}[{v}]") for p in PROBES.values() for v in p.variants],
)
def test_float32_is_right(cell: Cell, probe: Probe, variant: str) -> None:
    outcome = cell(probe.name, "fp32", variant)
    assert (outcome.status, outcome.reason) == ("ok", "")


@pytest.mark.parametrize("precision", ["bf16-true", "fp16-true"])
@pytest.mark.parametrize("variant", [v for v in PROBES["optim.forms"].variants if v != "sgd_fused"])
def test_every_form_steps_right_in_low_precision(cell: Cell, variant: str, precision: str) -> None:
    assert cell("optim.forms", precision, variant).status == "ok"


@pytest.mark.parametrize(("precision", "dtype"), [("bf16-true", torch.bfloat16), ("fp16-true", torch.float16)])
def test_fused_sgd_is_ok_exactly_where_torchs_is(cell: Cell, precision: str, dtype: torch.dtype) -> None:
    """pytorch#191763: with 8 elements and more, parameters stay and the momentum is rubbish."""
    weight = nn.Parameter(torch.ones(64, dtype=dtype))
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.5, fused=True)
    for _ in range(2):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert (cell("optim.forms", precision, "sgd_fused").status == "ok") == bool((weight == -0.25).all())


# --- where a format ends


@pytest.mark.parametrize("variant", ["adam", "rmsprop", "adagrad", "adamax", "nadam"])
def test_an_eps_that_is_zero_in_float16_is_named(cell: Cell, variant: str) -> None:
    """pytorch#8860 and siblings."""
    outcome = cell("optim.eps", "fp16-true", variant)
    assert (outcome.status, outcome.code) == ("nonfinite", "format")
    assert "eps" in outcome.reason
    assert cell("optim.eps", "bf16-true", variant).status == "ok"


def test_an_eps_that_float16_has_is_fine(cell: Cell) -> None:
    assert cell("optim.eps", "fp16-true", "adadelta").status == "ok"


@pytest.mark.parametrize("variant", PROBES["optim.vanishing"].variants)
def test_small_updates_vanish_in_bfloat16(cell: Cell, variant: str) -> None:
    outcome = cell("optim.vanishing", "bf16-true", variant)
    assert (outcome.status, outcome.code) == ("inert", "unmoved")


def test_a_norm_that_float16_cannot_hold_zeroes_every_gradient(cell: Cell) -> None:
    outcome = cell("optim.clip_norm", "fp16-true", "large")
    assert (outcome.status, outcome.code) == ("inaccurate", "zero_gradient")
    assert cell("optim.clip_norm", "bf16-true", "large").status == "ok"


# --- kernels that are wrong


@pytest.mark.parametrize("precision", ["fp32", "bf16-true"])
@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("sgd_foreach", "aten::_foreach_add_"),
        ("adam_foreach", "aten::_foreach_addcdiv_"),
        ("adamw_loop", "aten::addcdiv_"),
        ("adam_fused", "aten::_fused_adam_"),
        ("adagrad_fused", "aten::_fused_adagrad_"),
    ],
)
def test_a_kernel_that_does_nothing_is_seen(cell: Cell, variant: str, name: str, precision: str) -> None:
    def kernel(first: Any, *args: Any, **kwargs: Any) -> Any:
        return first if isinstance(first, Tensor) else None  # what takes lists in place gives nothing

    outcome = cell("optim.forms", precision, variant, {name: kernel})
    assert next(s.status for s in outcome.stages if s.name == "step") in ("inert", "inaccurate")


def test_a_fused_adam_that_forgets_its_bias_correction_is_seen(cell: Cell) -> None:
    def kernel(params: Any, grads: Any, avgs: Any, squares: Any, largest: Any, steps: Any, **kwargs: Any) -> None:
        late = [torch.full_like(s, 1e6) for s in steps]
        _truly._fused_adam_(params, grads, avgs, squares, largest, late, **kwargs)

    outcome = cell("optim.forms", "fp32", "adam_fused", {"aten::_fused_adam_": kernel})
    assert (outcome.status, outcome.stage) == ("inaccurate", "step")


def test_a_fused_kernel_that_skips_a_tail_is_seen(cell: Cell) -> None:
    """pytorch#191763, the other way round."""

    def kernel(params: Any, *args: Any, **kwargs: Any) -> None:
        kept = [p.clone() for p in params]
        _truly._fused_adam_(params, *args, **kwargs)
        for parameter, old in zip(params, kept, strict=True):
            rest = parameter.numel() % 16
            if rest:
                parameter.view(-1)[-rest:] = old.view(-1)[-rest:]

    outcome = cell("optim.forms", "fp32", "adam_fused", {"aten::_fused_adam_": kernel})
    assert outcome.status in ("inert", "inaccurate")


def test_an_eps_that_is_left_out_is_seen_and_is_the_backends(cell: Cell) -> None:
    def add(x: Tensor, other: Any, **kwargs: Any) -> Tensor:
        return x if isinstance(other, float) and other < 1e-7 else _truly.add_(x, other, **kwargs)

    outcome = cell("optim.eps", "fp32", "adam", {"aten::add_": add})
    assert (outcome.status, outcome.code) == ("nonfinite", "backend")


def test_squares_that_vanish_are_seen(cell: Cell) -> None:
    """As in float16, but finite: a step of another size."""

    def addcmul(x: Tensor, a: Tensor, b: Tensor, **kwargs: Any) -> Tensor:
        out = _truly.addcmul_(x, a, b, **kwargs)
        return out.mul_((out.abs() > 2.0**-24).to(out.dtype))

    assert cell("optim.eps", "fp32", "adam", {"aten::addcmul_": addcmul}).status != "ok"


@pytest.mark.parametrize("variant", ["weight_decay", "decoupled_decay"])
def test_weight_decay_that_is_left_out_is_seen(cell: Cell, variant: str) -> None:
    def add(x: Tensor, other: Tensor, *, alpha: float = 1.0) -> Tensor:
        return x if alpha == 0.1 else _truly.add(x, other, alpha=alpha)

    kernels = {"aten::add": add, "aten::mul_": lambda x, y: x if y != 0.9 else _truly.mul_(x, y)}
    outcome = cell("optim.vanishing", "fp32", variant, kernels)
    assert (outcome.status, outcome.code) == ("inert", "unmoved")


def _sum_low(x: Tensor, order: float = 2.0, *args: Any, **kwargs: Any) -> Tensor:
    """A norm whose squares are added up in the tensor's own dtype."""
    return _truly.sqrt(_truly.sum(_truly.mul(x, x)))


def test_squares_added_up_in_float16_are_seen(cell: Cell) -> None:
    kernels = {
        "aten::linalg_vector_norm": _sum_low,
        "aten::_foreach_norm": lambda xs, *a, **k: [_sum_low(x) for x in xs],
    }
    outcome = cell("optim.clip_norm", "fp16-true", "small", kernels)
    assert (outcome.status, outcome.stage) == ("inaccurate", "loop")
    assert cell("optim.clip_norm", "bf16-true", "small", kernels).status == "ok"


@pytest.mark.parametrize("variant", PROBES["optim.clip_norm"].variants)
def test_a_foreach_that_leaves_a_tensor_out_is_seen(cell: Cell, variant: str) -> None:
    def mul(tensors: list[Tensor], factor: Tensor) -> None:
        _truly._foreach_mul_(tensors[:-1], factor)

    outcome = cell("optim.clip_norm", "fp32", variant, {"aten::_foreach_mul_": mul})
    assert (outcome.status, outcome.stage) == ("inaccurate", "foreach")


def test_a_norm_that_swallows_nan_is_seen(cell: Cell) -> None:
    kernels = {"aten::linalg_vector_norm": lambda x, *a, **k: _truly.linalg_vector_norm(x.nan_to_num(0.0), *a, **k)}
    kernels["aten::_foreach_norm"] = lambda xs, *a, **k: _truly._foreach_norm([x.nan_to_num(0.0) for x in xs], *a, **k)
    outcome = cell("optim.clip_norm", "fp32", "large", kernels)
    assert (outcome.status, outcome.stage, outcome.code) == ("inaccurate", "refuse", "swallowed")


def test_a_clamp_that_swallows_nan_is_seen(cell: Cell) -> None:
    def clamp(x: Tensor, least: float, most: float) -> Tensor:
        return x.copy_(_truly.clamp(x.nan_to_num(0.0), least, most))

    outcome = cell("optim.clip_value", "bf16-true", kernels={"aten::clamp_": clamp})
    assert (outcome.status, outcome.code) == ("inaccurate", "swallowed")


def test_a_limit_that_is_another_is_seen(cell: Cell) -> None:
    kernels = {"aten::clamp_": lambda x, least, most: _truly.clamp_(x, least, most * 1.0625)}
    outcome = cell("optim.clip_value", "fp16-true", kernels=kernels)
    assert (outcome.status, outcome.stage, outcome.code) == ("inaccurate", "loop", "exact")
