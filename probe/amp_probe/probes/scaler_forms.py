"""A GradScaler with every form of the optimizers: `scaler.forms`, `scaler.nonfinite`, `scaler.several`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from amp_probe.case import Script
from amp_probe.draw import Draw
from amp_probe.harness.recorder import Draft
from amp_probe.harness.script import Lab
from amp_probe.probes.bench import (
    BACKOFF,
    GROWTH,
    INTERVAL,
    SCALE,
    SCALED,
    Bench,
    check_scale,
    make_scaler,
    nan_for_memory,
    values_and_gradients,
)
from amp_probe.probes.optimizers import FORMS
from amp_probe.suite import Probe

_BAD = {"first": float("inf"), "after_unscale": float("nan"), "last_element": float("-inf")}


def forms(draw: Draw) -> Script:
    """Good steps through the scaler with a loop over tensors, foreach or fused: unscaled by `step`, then before it.

    Parameters and state are compared with a float64 loop, and the scale grows when it must. Would have caught
    pytorch#191763 (fused SGD on a CPU leaves whole vectors of fp16 and bf16 parameters where they were, and writes
    rubbish into their momentum: torch 2.12 and 2.13), and a fused optimizer that divides by the scale twice or never.
    """
    form = FORMS[draw.variant]
    values, fed = values_and_gradients(draw, 4)

    def run(lab: Lab) -> None:
        with lab.stage("build"):
            bench = Bench(lab, form, values, make_scaler(lab, interval=INTERVAL))
        scale = SCALE
        for index, name in enumerate(("step_alone", "after_unscale", "grown", "again")):
            with lab.stage(name) as draft:
                scale *= GROWTH if index % INTERVAL == INTERVAL - 1 else 1.0
                _good(draft, bench, fed[index], scale, unscale=index == 1 and _may_unscale(lab))

    return Script(run)


def nonfinite(draw: Draw) -> Script:
    """One infinite or NaN gradient: nothing moves, the scale backs off, and the next step is as if it had not been.

    The very first step is such a one, as with a scale of 65536 it often is; then NaN after `unscale_`, then a negative
    infinity in a last element. Would have caught pytorch#186360 (fused Adam on mps moved its parameters), libreyolo
    PR 771 (fused SGD: a skipped first step leaves its momentum as uninitialized memory, every torch up to 2.13), and
    NaN that is not looked for.
    """
    form = FORMS[draw.variant]
    values, fed = values_and_gradients(draw, 3)

    def run(lab: Lab) -> None:
        with lab.stage("build"):
            bench = Bench(lab, form, values, None)
        scale = SCALE
        for index, (name, value) in enumerate(_BAD.items()):
            scale *= BACKOFF
            unscale = name == "after_unscale" and _may_unscale(lab)
            with lab.stage(name) as draft:
                _bad(draft, bench, fed[index], scale, unscale, index, value)
            with lab.stage(f"{name}_next") as draft:
                _good(draft, bench, fed[index], scale, unscale)

    return Script(run)


def several(draw: Draw) -> Script:
    """Two optimizers under one scaler: an infinite gradient in one stops that one alone, and the scale backs off once.

    Would have caught an infinity that is remembered for the wrong optimizer, or lost when the other is stepped, and a
    scale that changes once for each optimizer.
    """
    values, (fed,) = values_and_gradients(draw, 1)

    def run(lab: Lab) -> None:
        with lab.stage("build"):
            scaler = make_scaler(lab)
            first = Bench(lab, FORMS["adamw_foreach"], values, scaler)
            second = Bench(lab, FORMS["sgd_loop"], values, scaler)
        scale = SCALE
        for name, bad in (("both", ()), ("first_bad", (first,)), ("second_bad", (second,)), ("recovered", ())):
            with lab.stage(name) as draft:
                scale *= BACKOFF if bad else 1.0
                _together(draft, (first, second), fed, bad)
                check_scale(draft, scaler, scale)

    return Script(run)


def _may_unscale(lab: Lab) -> bool:
    """`unscale_` refuses float16 gradients by design (pytorch#74739)."""
    return lab.storage is not torch.float16


def _good(draft: Draft, bench: Bench, gradients: Sequence[Tensor], scale: float, unscale: bool) -> None:
    bench.feed(gradients)
    bench.expect(gradients)
    bench.step(unscale)
    bench.scaler.update()
    check_scale(draft, bench.scaler, scale)
    bench.judge(draft)


def _bad(
    draft: Draft, bench: Bench, gradients: Sequence[Tensor], scale: float, unscale: bool, place: int, value: float
) -> None:
    bench.feed(gradients)
    bench.spoil(place, value)
    with nan_for_memory():
        bench.step(unscale)
    bench.scaler.update()
    check_scale(draft, bench.scaler, scale)
    bench.untouched(draft, value)


def _together(draft: Draft, benches: tuple[Bench, Bench], fed: Sequence[Tensor], bad: Sequence[Bench]) -> None:
    """One is unscaled before its step, the other by it; the scaler is updated once."""
    for bench in benches:
        bench.feed(fed)
        if bench in bad:
            bench.spoil(2, float("inf"))
        else:
            bench.expect(fed)
    benches[0].scaler.unscale_(benches[0].optimizer)
    for bench in benches:
        bench.step(unscale=False)
    benches[0].scaler.update()
    for bench in benches:
        if bench in bad:
            bench.untouched(draft, float("inf"))
        else:
            bench.judge(draft)


_FUSED = tuple(name for name in FORMS if name.endswith("_fused"))
_OTHERS = tuple(name for name in FORMS if name not in _FUSED)
_ALLOWED = ("fp16-mixed", "bf16-true")
"""Without float16 gradients: only a fused optimizer unscales those, by design (`scaler.lifecycle` says so)."""

PROBES: tuple[Probe, ...] = (
    Probe("scaler.forms", forms, _OTHERS, _ALLOWED),
    Probe("scaler.forms", forms, _FUSED, SCALED),
    Probe("scaler.nonfinite", nonfinite, _OTHERS, _ALLOWED),
    Probe("scaler.nonfinite", nonfinite, _FUSED, SCALED),
    Probe("scaler.several", several, precisions=_ALLOWED),
)
