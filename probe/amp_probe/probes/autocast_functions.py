"""Code that torch runs again, or backward, under autocast: `autocast.custom_function`, `autocast.checkpoint`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as checkpointed

from amp_matrix.survey import Status
from amp_probe.case import Script
from amp_probe.draw import Draw
from amp_probe.harness.problem import Problem, judge_gradients, problem
from amp_probe.harness.recorder import Draft
from amp_probe.harness.script import Lab
from amp_probe.numerics import gradient_floor
from amp_probe.probes.autocast_regions import FP32_EPS, MIXED, disabled, expect_dtype
from amp_probe.probes.models import MLP, numbers, squared_error
from amp_probe.suite import Probe

Region = Callable[[Lab], AbstractContextManager[Any]]


def custom_function(draw: Draw) -> Script:
    """A torch.autograd.Function with custom_fwd and custom_bwd: its backward runs as its forward did.

    `base`: forward in a region, backward outside. `inside`: backward in the region too. `cast_inputs`: the function
    asks for float32 and must get it, there and in backward. `disabled`, `outside`: forward in a disabled region, or in
    none, and backward called in an enabled one. Judged by the dtypes of the products made in backward.
    Would have caught pytorch#87979 and kernels whose backward meets other dtypes than their forward.
    """
    values = (draw.normal(16, 24), draw.normal(24, 32), draw.normal(16, 32))
    return Script(functools.partial(_custom, _CUSTOM[draw.variant], values))


def checkpoint(draw: Draw) -> Script:
    """Activation checkpointing: what is computed again in backward has the dtypes that it had in forward.

    `base` and `reentrant`: backward outside the region; `inside`: within it, where a reentrant checkpoint's pass
    without a graph has filled the cache (pytorch#112583). `own`: the checkpointed function enters the region itself.
    `disabled`: it has a part in float32. Would have caught pytorch#141896 and a recomputation in float32.
    """
    posed = problem(MLP, squared_error, numbers(draw), draw)
    return Script(functools.partial(_checkpoint, posed, *_CHECKPOINTS[draw.variant]))


# --- custom functions


def _none(lab: Lab) -> AbstractContextManager[Any]:
    return nullcontext()


def _on(lab: Lab) -> AbstractContextManager[Any]:
    return lab.enter()


@dataclass(frozen=True)
class _Custom:
    """Where forward and backward are called, whether inputs are cast to float32, and whether that is what must run."""

    forward: Region = _on
    backward: Region = _none
    cast: bool = False
    float32: bool = False


_CUSTOM = {
    "base": _Custom(),
    "inside": _Custom(backward=_on),
    "cast_inputs": _Custom(cast=True, float32=True),
    "cast_inputs_inside": _Custom(backward=_on, cast=True, float32=True),
    "disabled": _Custom(forward=disabled, backward=_on, float32=True),
    "outside": _Custom(forward=_none, backward=_on, float32=True),
}

Seen = dict[str, list[torch.dtype]]


def _function(kind: str, cast: bool, seen: Seen) -> Any:
    """A product as a custom function for a kind of device; it tells the dtypes of the products that it makes."""

    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        out = a @ b
        seen["forward"].append(out.dtype)
        return out

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        of_a, of_b = gradient @ b.t(), a.t() @ gradient
        seen["backward"] += [of_a.dtype, of_b.dtype]
        return of_a, of_b

    wrap = torch.amp.custom_fwd(device_type=kind, cast_inputs=torch.float32 if cast else None)
    members = {
        "forward": staticmethod(wrap(forward)),
        "backward": staticmethod(torch.amp.custom_bwd(backward, device_type=kind)),
    }
    return type("Product", (torch.autograd.Function,), members)


def _custom(how: _Custom, values: tuple[Tensor, Tensor, Tensor], lab: Lab) -> None:
    seen: Seen = {"forward": [], "backward": []}
    wanted = torch.float32 if how.float32 else lab.low
    eps = FP32_EPS if how.float32 else None
    with lab.stage("build"):
        leaves = [lab.place(v, grad=True) for v in values[:2]]
        weights = lab.place(values[2])
        function = _function(lab.device.type, how.cast, seen)
    with lab.stage("forward") as draft:
        with how.forward(lab):
            out = function.apply(*leaves)
        if _expected(draft, "product in forward", seen["forward"], wanted):
            right = values[0] @ values[1]
            lab.judge(draft, "output", out, right, right.to(out.dtype).double(), eps=eps)
    with lab.stage("backward") as draft:
        loss = (out.float() * weights).sum()
        with how.backward(lab):
            loss.backward()
        if _expected(draft, "product in backward", seen["backward"], wanted):
            _judge_leaves(lab, draft, leaves, values, wanted, eps)


def _expected(draft: Draft, name: str, seen: list[torch.dtype], wanted: torch.dtype) -> bool:
    """Whether every product was made in the dtype wanted; in another its values say nothing more."""
    if not seen:
        draft.fail(Status.INERT, f"no {name} was made", "skipped")
    return bool(seen) and all(expect_dtype(draft, name, dtype, wanted) for dtype in seen)


def _judge_leaves(
    lab: Lab,
    draft: Draft,
    leaves: list[Tensor],
    values: tuple[Tensor, Tensor, Tensor],
    wanted: torch.dtype,
    eps: float | None,
) -> None:
    """Judge the gradients; a product's dtype in backward rounds them once (what it is made of is on the grid)."""
    a, b, weights = values
    rights = {"a": weights @ b.t(), "b": a.t() @ weights}
    floor = gradient_floor(rights.values())
    for leaf, (name, right) in zip(leaves, rights.items(), strict=True):
        if leaf.grad is None:
            draft.fail(Status.INACCURATE, f"{name} got no gradient", "no_gradient")
        elif expect_dtype(draft, f"grad {name}", leaf.grad.dtype, torch.float32):
            lab.judge(draft, f"grad {name}", leaf.grad, right, right.to(wanted).double(), floor=floor, eps=eps)


# --- checkpoints


def _checkpoint(posed: Problem, reentrant: bool, how: str, lab: Lab) -> None:
    seen: list[torch.dtype] = []
    with lab.stage("build"):
        model = posed.on(lab)
        x, target = lab.place(posed.batch[0], grad=True), lab.place(posed.batch[1])
        parameters = dict(model.named_parameters())
        _, right = posed.exact(parameters)
        for layer in model.children():
            layer.register_forward_hook(lambda m, i, out: seen.append(out.dtype))
    again = functools.partial(_partly_disabled if how == "disabled" else _forward, model, lab)
    around: Region = _none if how == "own" else _on
    work: Callable[[Tensor], Tensor] = functools.partial(_entered, lab, again) if how == "own" else again
    with ExitStack() as region:  # one for both stages, with one cache, where backward is called inside
        with lab.stage("forward") as draft:
            region.enter_context(around(lab))
            loss = posed.loss(checkpointed(work, x, use_reentrant=reentrant), target)
            first = list(seen)
            expect_dtype(draft, "first layer", first[0], lab.low)
            if how != "inside":
                region.close()
        with lab.stage("backward") as draft:
            loss.backward()  # type: ignore[no-untyped-call]
            region.close()
            _compare(draft, first, seen[len(first) :])
            judge_gradients(lab, draft, model, right, posed.ideal(lab, parameters))


def _forward(model: nn.Module, lab: Lab, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return out


def _entered(lab: Lab, work: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with lab.enter():
        return work(x)


def _partly_disabled(model: nn.Module, lab: Lab, x: Tensor) -> Tensor:
    """The last layer of the model in float32."""
    *layers, last = model.children()
    for layer in layers:
        x = layer(x)
    with disabled(lab):
        out: Tensor = last(x.float())
    return out


def _compare(draft: Draft, first: list[torch.dtype], again: list[torch.dtype]) -> None:
    """Compare the dtypes of every layer's output in forward and in the recomputation."""
    if not again:
        draft.fail(Status.INERT, "nothing was computed again", "skipped")
    for i, (then, now) in enumerate(zip(first, again, strict=False)):
        expect_dtype(draft, f"layer {i} again", now, then)


_CHECKPOINTS = {
    "base": (False, ""),
    "inside": (False, "inside"),
    "own": (False, "own"),
    "disabled": (False, "disabled"),
    "reentrant": (True, ""),
    "reentrant_inside": (True, "inside"),
    "reentrant_own": (True, "own"),
    "reentrant_disabled": (True, "disabled"),
}

PROBES: tuple[Probe, ...] = (
    Probe("autocast.custom_function", custom_function, tuple(_CUSTOM), MIXED),
    Probe("autocast.checkpoint", checkpoint, tuple(_CHECKPOINTS), MIXED),
)
