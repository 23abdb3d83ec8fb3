"""Autocast's probes: what torch 2.13 does on a CPU, and that each probe sees what is broken on purpose."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from amp_matrix.survey import Outcome, Stage
from amp_probe import policy
from amp_probe.draw import Draw
from amp_probe.probes import (
    autocast_cache,
    autocast_functions,
    autocast_operands,
    autocast_policy,
    autocast_regions,
)

Kernels = Mapping[str, Callable[..., Any]]
Cell = Callable[..., Outcome]
Patch = pytest.MonkeyPatch

FAMILIES = (autocast_regions, autocast_cache, autocast_functions, autocast_operands, autocast_policy)
PROBES = {p.name: p for family in FAMILIES for p in family.PROBES}
STALE = ("inplace", "data", "optimizer", "foreach", "ema", "load_state_dict", "inner_left")
STALE_LOOPS = ("loop", "loop_nested", "loop_disabled")
RAISE = (
    "index_put",
    "index_put_add",
    "assign",
    "index_add",
    "scatter",
    "scatter_add",
    "masked_scatter",
    "mv",
    "dot",
    "lerp",
)
EXPECTED = (
    {("autocast.cache", v): ("inert", "stale") for v in STALE}
    | {("autocast.cache", v): ("inert", "unmoved") for v in STALE_LOOPS}
    | {("autocast.cache", "other_dtype"): ("error", "raised")}
    | {("autocast.nested", "backward_inside"): ("inert", "dtype")}
    | {("autocast.mixed_operands", v): ("error", "raised") for v in RAISE}
)
"""What is not ok on a CPU with torch 2.13; all but `other_dtype` and `mixed_operands` are what torch documents."""
AS_2_13 = pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13), reason="expected of torch 2.13"
)
_truly = torch.ops.aten


@pytest.fixture(autouse=True)
def autocast_as_found() -> Iterator[None]:
    """Whatever a broken autocast leaves behind ends with the test."""
    yield
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_cache_enabled(True)
    torch.set_autocast_dtype("cpu", torch.bfloat16)
    torch.clear_autocast_cache()


@pytest.fixture
def cell(run_case: Callable[..., Outcome]) -> Cell:
    """cell("autocast.cache", "left", "bf16-mixed", kernels={}): the outcome of one of these probes' cells."""

    def run(name: str, variant: str, precision: str = "bf16-mixed", kernels: Kernels | None = None) -> Outcome:
        draw = Draw(name, variant)
        return run_case(PROBES[name].make(draw), draw, precision, kernels)

    return run


def stage(outcome: Outcome, name: str) -> Stage:
    return next(s for s in outcome.stages if s.name == name)


@AS_2_13
@pytest.mark.parametrize(
    ("name", "variant", "precision"),
    [(p.name, v, c) for p in PROBES.values() for v in p.variants for c in p.precisions],
)
def test_what_torch_does_on_a_cpu(cell: Cell, name: str, variant: str, precision: str) -> None:
    outcome = cell(name, variant, precision)
    assert (outcome.status, outcome.code) == EXPECTED.get((name, variant), ("ok", "")), outcome.reason


# --- nested regions


def test_a_disabled_region_that_stays_on_is_seen(cell: Cell, monkeypatch: Patch) -> None:
    truly = torch.set_autocast_enabled
    monkeypatch.setattr(torch, "set_autocast_enabled", lambda kind, on: truly(kind, True) if on else None)
    outcome = cell("autocast.nested", "base")
    assert (outcome.status, outcome.code) == ("inert", "dtype")
    assert "disabled is bfloat16, asked for float32" in outcome.reason


def test_a_disabled_region_that_rounds_its_operands_is_seen(cell: Cell) -> None:
    kernels = {"aten::mm": lambda a, b: _truly.mm(a.bfloat16().to(a.dtype), b.bfloat16().to(b.dtype))}
    outcome = cell("autocast.nested", "base", kernels=kernels)
    assert (outcome.status, outcome.code) == ("inaccurate", "n")
    assert "disabled" in outcome.reason


def test_a_region_that_an_exception_does_not_end_is_seen(cell: Cell, monkeypatch: Patch) -> None:
    truly = torch.autocast.__exit__

    def leave(self: torch.autocast, kind: Any, *rest: Any) -> Any:
        inside = torch.is_autocast_enabled("cpu")
        result = truly(self, kind, *rest)
        if kind is LookupError:
            torch.set_autocast_enabled("cpu", inside)
        return result

    monkeypatch.setattr(torch.autocast, "__exit__", leave)
    assert cell("autocast.nested", "base").status == "ok"
    outcome = cell("autocast.nested", "raised")
    assert (outcome.status, outcome.code) == ("inert", "dtype")


def test_a_decorator_that_does_nothing_is_seen(cell: Cell, monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch.autocast, "__call__", lambda self, function: function)
    assert (cell("autocast.nested", "decorated").status) == "inert"


def test_an_inner_region_that_keeps_the_outer_dtype_is_seen(cell: Cell, monkeypatch: Patch) -> None:
    truly = torch.set_autocast_dtype
    monkeypatch.setattr(torch, "set_autocast_dtype", lambda kind, dtype: truly(kind, torch.bfloat16))
    outcome = cell("autocast.nested", "other_dtype")
    assert (outcome.status, outcome.reason) == ("inert", "inner is bfloat16, asked for float16")


def test_a_backward_pass_in_another_dtype_is_seen(cell: Cell, monkeypatch: Patch) -> None:
    truly = torch.Tensor.backward

    def backward(loss: Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            truly(loss)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(torch.Tensor, "backward", backward)
    outcome = cell("autocast.nested", "backward")
    assert (outcome.status, outcome.stage) == ("inert", "backward")


# --- threads and flags


def test_a_thread_that_inherits_a_region_is_seen(cell: Cell, monkeypatch: Patch) -> None:
    truly = ThreadPoolExecutor.submit

    def submit(self: ThreadPoolExecutor, work: Callable[[], Any]) -> Future[Any]:
        inherited = torch.is_autocast_enabled("cpu")

        def run() -> Any:
            torch.set_autocast_enabled("cpu", inherited)
            return work()

        return truly(self, run)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    outcome = cell("autocast.thread", "base")
    assert (outcome.status, outcome.reason) == ("inert", "in a thread is bfloat16, asked for float32")


def test_a_region_that_does_not_apply_in_a_thread_is_seen(cell: Cell, monkeypatch: Patch) -> None:
    truly = torch.set_autocast_enabled

    def enable(kind: str, on: bool) -> None:
        truly(kind, on and threading.current_thread() is threading.main_thread())

    monkeypatch.setattr(torch, "set_autocast_enabled", enable)
    assert cell("autocast.thread", "base").status == "inert"


def test_a_flag_that_says_more_than_applies_is_seen(cell: Cell, monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind="cuda": True)
    outcome = cell("autocast.flags", "base")
    assert (outcome.status, outcome.stage, outcome.code) == ("inert", "outside", "flag")


def test_what_a_flag_says_without_a_device_is_recorded_and_no_fault(cell: Cell) -> None:
    outcome = cell("autocast.flags", "base")
    assert stage(outcome, "inside").numbers["enabled"] == 1.0
    assert stage(outcome, "inside").numbers["enabled_without_device"] == 0.0
    assert stage(outcome, "disabled").numbers["enabled"] == 0.0
    assert any("without a device is False" in note for note in outcome.notes)


# --- the cache


@pytest.mark.parametrize("variant", [*STALE, *STALE_LOOPS])
def test_without_stale_casts_the_same_cells_are_ok(cell: Cell, monkeypatch: Patch, variant: str) -> None:
    truly = torch.set_autocast_cache_enabled
    monkeypatch.setattr(torch, "set_autocast_cache_enabled", lambda on: truly(False))
    outcome = cell("autocast.cache", variant)
    assert (outcome.status, outcome.reason) == ("ok", "")


@pytest.mark.parametrize("variant", ["uncached", "loop_uncached"])
def test_a_cache_that_cannot_be_switched_off_is_seen(cell: Cell, monkeypatch: Patch, variant: str) -> None:
    monkeypatch.setattr(torch, "set_autocast_cache_enabled", lambda on: None)
    assert cell("autocast.cache", variant).status == "inert"


@pytest.mark.parametrize("variant", ["left", "cleared", "loop_apart"])
def test_a_cache_that_outlives_its_region_is_seen(cell: Cell, monkeypatch: Patch, variant: str) -> None:
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: None)
    assert cell("autocast.cache", variant).status == "inert"


def _remembering(shape: tuple[int, ...], by_place: bool) -> Kernels:
    """A device that gives the first cast for ever: of any tensor of this shape, or of one at each place in memory."""
    kept: dict[Any, Tensor] = {}

    def cast(x: Tensor, *, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
        out = _truly._to_copy(x, dtype=dtype, **kwargs)
        place = x.data_ptr() if by_place else 0
        return kept.setdefault(place, out).clone() if x.shape == shape and dtype is torch.bfloat16 else out

    return {"aten::_to_copy": cast}


def test_a_cast_that_is_kept_for_another_weight_is_seen(cell: Cell) -> None:
    outcome = cell("autocast.cache", "replaced", kernels=_remembering((16, 32), by_place=False))
    assert (outcome.status, outcome.code) == ("inert", "stale")


@pytest.mark.parametrize("shape", [(64, 32), (64, 64), (16, 64), (64,), (16,)])
def test_one_stale_weight_among_several_is_seen(cell: Cell, shape: tuple[int, ...]) -> None:
    """The loss falls all the same."""
    outcome = cell("autocast.cache", "loop_apart", kernels=_remembering(shape, by_place=True))
    losses = stage(outcome, "movement").curves["loss"]
    assert losses[-1] < losses[0]
    assert outcome.status == "inaccurate"
    assert outcome.stage in ("movement", "gradients")


@pytest.mark.parametrize("variant", ["no_grad_first", "inference_first", "unfrozen", "accumulate"])
def test_gradients_are_judged_after_whatever_came_first(cell: Cell, variant: str) -> None:
    kernels = {"aten::sum": lambda x, *args, **kwargs: torch.sum(x, *args, **kwargs) * 0.5}
    outcome = cell("autocast.cache", variant, kernels=kernels)
    assert (outcome.status, outcome.stage) == ("inaccurate", "backward")


def test_a_weight_without_a_graph_is_seen(cell: Cell, monkeypatch: Patch) -> None:
    """pytorch#112583, put back."""

    def forward(m: torch.nn.Linear, x: Tensor) -> Tensor:
        weight = m.weight if x.dtype is torch.float64 else m.weight.data
        return torch.nn.functional.linear(x, weight, m.bias)

    monkeypatch.setattr(torch.nn.Linear, "forward", forward)
    outcome = cell("autocast.cache", "no_grad_first")
    assert (outcome.status, outcome.stage) == ("inaccurate", "backward")
    assert "weight got no gradient" in outcome.reason


# --- custom functions and checkpoints


@pytest.mark.parametrize(
    ("variant", "status"),
    [("base", "error"), ("cast_inputs_inside", "inert"), ("disabled", "inert"), ("outside", "inert")],
)
def test_custom_bwd_that_does_nothing_is_seen(cell: Cell, monkeypatch: Patch, variant: str, status: str) -> None:
    monkeypatch.setattr(torch.amp, "custom_bwd", lambda function, *, device_type: function)
    outcome = cell("autocast.custom_function", variant)
    assert (outcome.status, outcome.stage) == (status, "backward")


@pytest.mark.parametrize("variant", ["cast_inputs", "cast_inputs_inside"])
def test_inputs_that_are_not_cast_are_seen(cell: Cell, monkeypatch: Patch, variant: str) -> None:
    truly = torch.amp.custom_fwd
    monkeypatch.setattr(
        torch.amp, "custom_fwd", lambda *, device_type, cast_inputs: truly(device_type=device_type, cast_inputs=None)
    )
    outcome = cell("autocast.custom_function", variant)
    assert (outcome.status, outcome.stage) == ("inert", "forward")


def test_a_custom_backward_that_is_half_right_is_seen(cell: Cell) -> None:
    kernels = {"aten::mm": lambda a, b: _truly.mm(a, b) * (0.5 if a.shape == (24, 16) else 1.0)}
    outcome = cell("autocast.custom_function", "inside", kernels=kernels)
    assert (outcome.status, outcome.stage) == ("inaccurate", "backward")


@pytest.mark.parametrize("variant", ["base", "reentrant"])
def test_a_recomputation_in_float32_is_seen(cell: Cell, monkeypatch: Patch, variant: str) -> None:
    """Either torch's own check of what was saved notices, or the dtypes do."""
    truly = torch.utils.checkpoint._get_autocast_kwargs

    def off(*args: Any, **kwargs: Any) -> Any:
        return tuple(found and {**found, "enabled": False} for found in truly(*args, **kwargs))

    monkeypatch.setattr(torch.utils.checkpoint, "_get_autocast_kwargs", off)
    outcome = cell("autocast.checkpoint", variant)
    assert (outcome.status, outcome.stage) == ("inert" if variant == "reentrant" else "error", "backward")


@pytest.mark.parametrize("variant", ["base", "reentrant_inside", "own", "reentrant_disabled"])
def test_a_checkpoint_that_computes_nothing_again_is_seen(cell: Cell, monkeypatch: Patch, variant: str) -> None:
    monkeypatch.setattr(autocast_functions, "checkpointed", lambda work, x, use_reentrant: work(x))
    outcome = cell("autocast.checkpoint", variant)
    assert (outcome.status, outcome.code) == ("inert", "skipped")


@pytest.mark.parametrize("variant", PROBES["autocast.checkpoint"].variants)
def test_a_checkpoints_gradients_are_judged(cell: Cell, variant: str) -> None:
    kernels = {"aten::sum": lambda x, *args, **kwargs: torch.sum(x, *args, **kwargs) * 0.5}
    outcome = cell("autocast.checkpoint", variant, kernels=kernels)
    assert (outcome.status, outcome.stage) == ("inaccurate", "backward")


# --- operands and the policy


def _cat(tensors: list[Tensor], dim: int = 0) -> Tensor:
    """Wrong on a device, and right in float64."""
    wide = tensors[0].dtype is torch.float64
    return _truly.cat(tensors if wide else [tensors[0], tensors[0]], dim)


@pytest.mark.parametrize(
    ("variant", "kernels"),
    [
        ("cat", {"aten::cat": _cat}),
        ("where", {"aten::where": lambda which, a, b: _truly.where(which, a, a)}),
        ("addcmul", {"aten::addcmul": lambda a, b, c, **kwargs: _truly.addcmul(a, b, c, value=0.5)}),
    ],
)
def test_a_wrong_value_from_mixed_operands_is_seen(cell: Cell, variant: str, kernels: Kernels) -> None:
    outcome = cell("autocast.mixed_operands", variant, kernels=kernels)
    assert stage(outcome, "infer").status == "inaccurate"


def test_the_policy_shows_what_came_out_and_not_what_was_asked_for(cell: Cell) -> None:
    kernels = {"aten::mm": lambda a, b: _truly.mm(a.float(), b.float())}
    right, wrong = cell("autocast.policy", "base"), cell("autocast.policy", "base", kernels=kernels)
    assert stage(right, "float32").dtypes["mm"] == "bfloat16"
    assert stage(wrong, "float32").dtypes["mm"] == "float32"


def test_an_operator_that_raises_stands_in_the_policy_and_its_words_in_the_notes(cell: Cell) -> None:
    outcome = cell("autocast.policy", "base")
    assert outcome.status == "ok"
    assert stage(outcome, "both").dtypes["dot"] == policy.REFUSED
    assert any(note.startswith("dot, both: RuntimeError: ") for note in outcome.notes)


def test_the_policy_has_about_fifty_operators_given_three_kinds_of_inputs(cell: Cell) -> None:
    outcome = cell("autocast.policy", "base", "fp16-mixed")
    assert [s.name for s in outcome.stages] == list(policy.INPUTS)
    assert len(stage(outcome, "low").dtypes) == len(policy.OPERATORS) > 40
    assert set(stage(outcome, "low").dtypes.values()) == {"float16", "float32"}
