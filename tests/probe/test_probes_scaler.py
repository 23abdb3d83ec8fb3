"""The scaler's probes: right here, or torch's fault and known; and wrong where something is wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amp_matrix.survey import Outcome, Stage
from amp_probe.draw import Draw
from amp_probe.probes import scaler_forms, scaler_gradients, scaler_range
from amp_probe.probes.bench import nan_for_memory
from amp_probe.session import torch_state
from amp_probe.suite import Probe

Kernels = Mapping[str, Callable[..., Any]]
Cell = Callable[..., Outcome]

PROBES = [p for family in (scaler_forms, scaler_gradients, scaler_range) for p in family.PROBES]
_MAKES = {p.name: p.make for p in PROBES}
_UNSCALE = "aten::_amp_foreach_non_finite_check_and_unscale_"
_truly = torch.ops.aten


@pytest.fixture
def cell(run_case: Callable[..., Outcome]) -> Cell:
    """cell("scaler.forms", "bf16-true", "adam_fused", kernels={}): the outcome of a cell of a probe that ships."""

    def run(name: str, precision: str, variant: str = "base", kernels: Kernels | None = None) -> Outcome:
        draw = Draw(name, variant)
        return run_case(_MAKES[name](draw), draw, precision, kernels)

    return run


def stage(outcome: Outcome, name: str) -> Stage:
    return next(s for s in outcome.stages if s.name == name)


def _fused_sgd_is_sound(dtype: torch.dtype) -> bool:
    """pytorch#191763: on a CPU, with 8 elements and more, parameters stay and the momentum is rubbish."""
    weight = nn.Parameter(torch.ones(64, dtype=dtype))
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.5, fused=True)
    for _ in range(2):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    return bool((weight == -0.25).all())


def _skipped_first_step_is_sound() -> bool:
    """Libreyolo PR 771: the momentum of a first step that was skipped must not be what stood in memory."""
    weight = nn.Parameter(torch.ones(64))
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.5, fused=True)
    optimizer.grad_scale, optimizer.found_inf = torch.ones(1), torch.ones(1)  # type: ignore[attr-defined]
    weight.grad = torch.ones_like(weight)
    with nan_for_memory():
        optimizer.step()
    del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
    optimizer.step()
    return bool((weight == 0.5).all())


def _cells() -> list[tuple[Probe, str, str]]:
    every = [(p, v, c) for p in PROBES for v in p.variants for c in p.precisions]
    return [x for x in every if x[1] != "sgd_fused" and x[2] != "fp16-true"]


@pytest.mark.parametrize(
    ("probe", "variant", "precision"), [pytest.param(*x, id=f"{x[0].name}[{x[1]}]@{x[2]}") for x in _cells()]
)
def test_here_every_form_is_right(cell: Cell, probe: Probe, variant: str, precision: str) -> None:
    outcome = cell(probe.name, precision, variant)
    assert (outcome.status, outcome.reason) == ("ok", "")


@pytest.mark.parametrize("variant", ["adam_fused", "adamw_fused"])
@pytest.mark.parametrize("name", ["scaler.forms", "scaler.nonfinite"])
def test_fused_adam_takes_float16_gradients(cell: Cell, name: str, variant: str) -> None:
    assert cell(name, "fp16-true", variant).status == "ok"


@pytest.mark.parametrize("name", ["scaler.unscale", "scaler.sparse"])
def test_unscale_refuses_float16_gradients_by_design(cell: Cell, name: str) -> None:
    """pytorch#74739."""
    outcome = cell(name, "fp16-true")
    assert (outcome.status, outcome.stage) == ("unsupported", "unscale")


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp16-mixed", torch.float32), ("bf16-true", torch.bfloat16), ("fp16-true", torch.float16)],
)
def test_fused_sgd_is_ok_exactly_where_torchs_is(cell: Cell, precision: str, dtype: torch.dtype) -> None:
    assert (cell("scaler.forms", precision, "sgd_fused").status == "ok") == _fused_sgd_is_sound(dtype)


def test_fused_sgd_after_a_skipped_first_step_is_ok_exactly_where_torchs_is(cell: Cell) -> None:
    outcome = cell("scaler.nonfinite", "fp16-mixed", "sgd_fused")
    assert (outcome.status == "ok") == _skipped_first_step_is_sound()
    assert outcome.status == "ok" or outcome.stage == "first_next"


def test_nothing_global_stays_changed(cell: Cell) -> None:
    before = torch_state(), torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    cell("scaler.nonfinite", "fp16-mixed", "adam_loop")
    assert (torch_state(), torch.utils.deterministic.fill_uninitialized_memory) == before  # type: ignore[attr-defined]


# --- fused kernels


def _without(name: str) -> Callable[..., Any]:
    """A fused Adam that does not hear of the scale, or of what was found."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _truly._fused_adam_(*args, **(kwargs | {name: None}))

    return kernel


@pytest.mark.parametrize("precision", ["fp16-mixed", "bf16-true", "fp16-true"])
def test_fused_adam_that_moves_with_an_infinite_gradient_is_seen(cell: Cell, precision: str) -> None:
    """pytorch#186360."""
    kernels = {"aten::_fused_adam_": _without("found_inf")}
    outcome = cell("scaler.nonfinite", precision, "adam_fused", kernels)
    assert stage(outcome, "first").code == "moved"


@pytest.mark.parametrize("precision", ["fp16-mixed", "bf16-true"])
def test_fused_adam_that_keeps_the_scale_in_its_gradients_is_seen(cell: Cell, precision: str) -> None:
    kernels = {"aten::_fused_adam_": _without("grad_scale")}
    assert cell("scaler.forms", precision, "adam_fused", kernels).stage == "step_alone"


def test_a_fused_state_that_a_skipped_step_has_begun_is_seen(cell: Cell) -> None:
    """The parameters stay, the moments do not."""

    def kernel(params: Any, grads: Any, exp_avgs: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs["found_inf"] is not None and kwargs["found_inf"].item():
            for moment in exp_avgs:
                moment.fill_(0.125)
        _truly._fused_adam_(params, grads, exp_avgs, *args, **kwargs)

    outcome = cell("scaler.nonfinite", "fp16-mixed", "adam_fused", {"aten::_fused_adam_": kernel})
    assert (outcome.status, outcome.stage) == ("inaccurate", "first_next")


# --- unscaling


def _unscale(change: Callable[[Tensor], Any], found: bool = True) -> Kernels:
    """A device that does something to every unscaled gradient, and may not look for infinities."""

    def kernel(gradients: list[Tensor], found_inf: Tensor, inverse: Tensor) -> None:
        _truly._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inverse)
        if not found:
            found_inf.zero_()
        for gradient in gradients:
            change(gradient)

    return {_UNSCALE: kernel}


def _zero_low(gradient: Tensor) -> None:
    if gradient.dtype is not torch.float32:
        gradient.zero_()


@pytest.mark.parametrize("name", ["scaler.unscale", "scaler.sparse", "scaler.underflow", "scaler.several"])
def test_low_gradients_that_become_zeros_are_seen(cell: Cell, name: str) -> None:
    """pytorch#184286: in silence, and float32 is fine."""
    assert cell(name, "bf16-true", kernels=_unscale(_zero_low)).status in ("inaccurate", "inert")
    assert cell(name, "fp16-mixed", kernels=_unscale(_zero_low)).status == "ok"


@pytest.mark.parametrize("variant", ["sgd_loop", "adam_foreach", "adamw_loop"])
@pytest.mark.parametrize("precision", ["fp16-mixed", "bf16-true"])
def test_zeroed_gradients_are_seen_through_every_optimizer(cell: Cell, variant: str, precision: str) -> None:
    outcome = cell("scaler.forms", precision, variant, _unscale(Tensor.zero_))
    assert outcome.status in ("inaccurate", "inert")
    assert outcome.stage == "step_alone"


def test_a_tail_that_is_not_unscaled_is_seen(cell: Cell) -> None:
    def tail(gradient: Tensor) -> None:
        flat = gradient.view(-1) if gradient.is_contiguous() else gradient
        if flat.dim() == 1 and len(flat) > 8 and len(flat) % 8:
            flat[-(len(flat) % 8) :] *= 1024.0

    outcome = cell("scaler.unscale", "fp16-mixed", kernels=_unscale(tail))
    assert (outcome.status, outcome.stage) == ("inaccurate", "unscale")
    assert "a long vector" in outcome.reason


@pytest.mark.parametrize("variant", ["sgd_loop", "adam_loop", "adamw_foreach"])
def test_infinities_that_nobody_looks_for_are_seen(cell: Cell, variant: str) -> None:
    kernels = _unscale(lambda gradient: None, found=False)
    outcome = cell("scaler.nonfinite", "fp16-mixed", variant, kernels)
    assert stage(outcome, "first").status == "inaccurate"


@pytest.mark.parametrize(
    ("name", "where"),
    [("scaler.several", "first_bad"), ("scaler.sparse", "inf_step"), ("scaler.overflow", "back_off")],
)
def test_infinities_that_nobody_looks_for_are_seen_everywhere(cell: Cell, name: str, where: str) -> None:
    outcome = cell(name, "fp16-mixed", kernels=_unscale(lambda gradient: None, found=False))
    assert stage(outcome, where).status == "inaccurate"


def test_nan_that_is_not_looked_for_is_seen(cell: Cell) -> None:
    def kernel(gradients: list[Tensor], found_inf: Tensor, inverse: Tensor) -> None:
        for gradient in gradients:
            found_inf.fill_(max(float(found_inf), float(gradient.isinf().any())))
            gradient.mul_(inverse.to(gradient.dtype))

    outcome = cell("scaler.nonfinite", "fp16-mixed", "sgd_loop", {_UNSCALE: kernel})
    assert stage(outcome, "first").status == "ok"
    assert stage(outcome, "after_unscale").status == "inaccurate"


# --- the scaler itself


def test_an_infinity_remembered_for_the_wrong_optimizer_is_seen(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer is skipped for what was found in another's gradients."""

    def step(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        found = [v.item() for s in self._per_optimizer_states.values() for v in s["found_inf_per_device"].values()]
        return None if any(found) else optimizer.step()

    monkeypatch.setattr(torch.amp.GradScaler, "_maybe_opt_step", step)
    outcome = cell("scaler.several", "fp16-mixed")
    assert stage(outcome, "first_bad").status in ("inert", "inaccurate")


@pytest.mark.parametrize("variant", ["sgd_loop", "adam_fused"])
def test_a_scale_that_never_changes_is_seen(cell: Cell, variant: str) -> None:
    kernels = {"aten::_amp_update_scale_": lambda scale, *a: scale}
    assert (cell("scaler.forms", "fp16-mixed", variant, kernels).code) == "scale"
    assert (cell("scaler.nonfinite", "fp16-mixed", variant, kernels).code) == "scale"
    assert (cell("scaler.overflow", "fp16-mixed", kernels=kernels).code) == "scale"


@pytest.mark.parametrize("lost", ["scale", "_growth_tracker", "growth_interval", "backoff_factor"])
def test_state_that_a_restart_loses_is_seen(cell: Cell, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    whole = torch.amp.GradScaler.load_state_dict

    def load(self: Any, state: dict[str, Any]) -> None:
        whole(self, state | {lost: {"scale": 64.0, "_growth_tracker": 0, "backoff_factor": 0.25}.get(lost, 2000)})

    monkeypatch.setattr(torch.amp.GradScaler, "load_state_dict", load)
    outcome = cell("scaler.state_dict", "fp16-mixed")
    assert (outcome.status, outcome.code) == ("inaccurate", "scale")
    assert {s.name: str(s.status) for s in outcome.stages}["save"] == "ok"


def test_state_that_is_not_saved_is_seen(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.amp.GradScaler, "_get_growth_tracker", lambda self: 0)
    outcome = cell("scaler.state_dict", "fp16-mixed")
    assert (outcome.status, outcome.stage) == ("inaccurate", "save")


# --- what it is for


def test_gradients_do_vanish_without_a_scaler_in_float16_alone(cell: Cell) -> None:
    vanished = {p: stage(cell("scaler.underflow", p), "unscaled").numbers["vanished"] for p in ("fp16-mixed", "fp32")}
    assert vanished["fp16-mixed"] > 0.5 > 0.05 > vanished["fp32"]


def test_a_scale_that_does_not_reach_the_backward_pass_is_seen(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is scaled after its gradient: the number is right, and the gradients still vanish."""
    whole = torch.amp.GradScaler.scale

    def scale(self: Any, loss: Tensor) -> Tensor:
        scaled: Tensor = whole(self, loss)
        for parameter in () if not loss.requires_grad else (loss,):
            scaled = parameter + (scaled - parameter).detach()
        return scaled

    def unscale(gradients: list[Tensor], found_inf: Tensor, inverse: Tensor) -> None:
        """What is left is not divided either, so that sizes look right."""

    monkeypatch.setattr(torch.amp.GradScaler, "scale", scale)
    outcome = cell("scaler.underflow", "fp16-mixed", kernels={_UNSCALE: unscale})
    assert (outcome.status, outcome.stage) == ("inaccurate", "unscale")
    assert cell("scaler.underflow", "fp32", kernels={_UNSCALE: unscale}).status == "ok"


def test_denormals_flushed_to_zero_are_seen(cell: Cell) -> None:
    """Gradients of 2^-26 are normal numbers in float32 and bfloat16; in float16 the scaled ones are what counts."""

    def flush(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        out = _truly.mm(x, *args, **kwargs)
        return out.where(out.abs() >= 2.0**-8, 0.0) if out.dtype is torch.float16 else out

    outcome = cell("scaler.underflow", "fp16-mixed", kernels={"aten::mm": flush})
    assert (outcome.status, outcome.stage) == ("inaccurate", "unscale")


def test_an_overflow_that_does_not_come_is_not_float16(cell: Cell) -> None:
    """A range like float32's under a float16 name."""
    outcome = cell("scaler.overflow", "bf16-mixed")
    assert (outcome.status, outcome.code) == ("inert", "no_overflow")
