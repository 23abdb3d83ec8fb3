"""Optimizers beyond the essential two: `optim.forms`, `optim.eps`, `optim.vanishing`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from amp_matrix.survey import Status
from amp_probe.case import Script
from amp_probe.draw import Draw
from amp_probe.harness.problem import float64
from amp_probe.harness.recorder import Draft, Fault
from amp_probe.harness.script import Lab
from amp_probe.harness.training import RATIO
from amp_probe.harness.update import Make, judged_step, lost_eps
from amp_probe.probes.bench import judge, values_and_gradients
from amp_probe.probes.optimizers import FORMS
from amp_probe.suite import Probe

STORED = ("fp32", "bf16-true", "fp16-true")
"""An optimizer sees the parameters' dtype alone, and in mixed precisions that is float32."""
_STEPS = 10
_EMA: Any = get_ema_multi_avg_fn(0.999)  # type: ignore[no-untyped-call]


def _fused_adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    form = FORMS["adam_fused"]
    return (form.plain if parameters[0].dtype is torch.float64 else form.make)(parameters)


_EPS: dict[str, Make] = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adam_fused": _fused_adam,
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.01),
    "adamax": lambda parameters: torch.optim.Adamax(parameters, lr=0.01),
    "nadam": lambda parameters: torch.optim.NAdam(parameters, lr=0.01),
    "adadelta": lambda parameters: torch.optim.Adadelta(parameters, lr=1.0),
}
_TINY: dict[str, Make] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-4),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-3),
    "weight_decay": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, weight_decay=0.1),
    "decoupled_decay": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1, eps=1e-4),
}


def forms(draw: Draw) -> Script:
    """Three steps of SGD with momentum, Adam, AdamW and Adagrad: a loop over tensors, foreach, fused.

    Each is compared with the float64 loop. Would have caught pytorch#191763 (fused SGD on a CPU skips whole vectors of
    fp16 and bf16 parameters: torch 2.12 and 2.13), and foreach that falls back to something else for a mix of shapes.
    """
    form = FORMS[draw.variant]
    values, fed = values_and_gradients(draw, 3)

    def run(lab: Lab) -> None:
        with lab.stage("build"):
            parameters = {f"tensor {i}": nn.Parameter(lab.place(v)) for i, v in enumerate(values)}
            optimizer = form.make(parameters.values())
        for name, gradients in zip(("step", "second_step", "third_step"), fed, strict=True):
            with lab.stage(name) as draft:
                _feed(lab, list(parameters.values()), gradients)
                judged_step(lab, draft, parameters, optimizer, form.plain, optimizer.step)

    return Script(run)


def eps(draw: Draw) -> Script:
    """Gradients of which some are 0 and some so small that their squares vanish: only eps keeps the step finite.

    Would have caught pytorch#8860 (Adam's eps of 1e-8 is 0 in float16: 0 / 0) and its siblings: RMSprop, Adagrad
    (1e-10), Adamax, NAdam. A fused kernel works in float32 and keeps eps; but its second moments, kept in float16,
    vanish, and its next step is of another size.
    """
    values, (gradients,) = values_and_gradients(draw, 1)
    gradients = [g * (draw.integers(*g.shape, high=3) * 2.0**-13 if g.numel() > 1 else 0.0) for g in gradients]

    def run(lab: Lab) -> None:
        with lab.stage("build"):
            parameters = {f"tensor {i}": nn.Parameter(lab.place(v)) for i, v in enumerate(values)}
            optimizer = _EPS[draw.variant](list(parameters.values()))
            twins = [nn.Parameter(v.clone()) for v in values]
            twin = _EPS[draw.variant](twins)
        for name in ("step", "second_step"):
            with lab.stage(name) as draft:
                _feed(lab, list(parameters.values()), gradients)
                optimizer.step()
                _feed_exactly(twins, gradients)
                twin.step()
                _judge_finite(draft, parameters, optimizer)
                for (tensor, got), right in zip(parameters.items(), twins, strict=True):
                    judge(lab, draft, tensor, got, right)

    return Script(run)


def vanishing(draw: Draw) -> Script:
    """Ten small updates of weights of 1.0, against float64: by optimizers, weight decay, and an averaged model.

    bfloat16 has nothing between 0.996 and 1.0, float16 nothing between 0.9995 and 1.0: what is smaller is lost, step
    for step, and the loss may still fall. Sibling of `optim.tiny_update`.
    """
    work = _average if draw.variant == "ema" else _decay if draw.variant.endswith("decay") else _optimize

    def run(lab: Lab) -> None:
        with lab.stage("build"):
            ones = torch.ones(64, dtype=torch.float64)
            weight, right = nn.Parameter(lab.place(ones)), nn.Parameter(ones.clone())
        with lab.stage("steps") as draft:
            moved, wanted = work(draw.variant, weight), work(draw.variant, right)
            lab.synchronize()
            _judge_part(draft, draw.variant, (1.0 - float64(moved)) / (1.0 - float64(wanted)))

    return Script(run)


def _optimize(variant: str, weight: nn.Parameter, gradient: float = 1.0) -> Tensor:
    optimizer = _TINY[variant]([weight])
    for _ in range(_STEPS):
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
    return weight


def _decay(variant: str, weight: nn.Parameter) -> Tensor:
    """Nothing but weight decay moves the weight."""
    return _optimize(variant, weight, gradient=0.0)


def _average(variant: str, weight: nn.Parameter) -> Tensor:
    """The exponential average, 0.999, of a weight that has become 0."""
    module = nn.Module()
    module.weight = weight
    averaged = AveragedModel(module, multi_avg_fn=_EMA)
    averaged.update_parameters(module)  # the first copies
    weight.data.zero_()
    for _ in range(_STEPS):
        averaged.update_parameters(module)
    return next(averaged.module.parameters())


def _judge_part(draft: Draft, variant: str, part: Tensor) -> None:
    """The part of the right movement that was made."""
    least, most = float(part.min()), float(part.max())
    draft.numbers |= {"ratio_low": least, "ratio_high": most}
    if not part.isfinite().all():
        raise Fault(Status.NONFINITE, f"a weight of 1.0 is NaN or Inf after {_STEPS} steps of {variant}", "backend")
    if most == 0.0:
        draft.fail(Status.INERT, f"a weight of 1.0 never moved by {_STEPS} steps of {variant}", "unmoved")
    elif not RATIO[0] <= least <= most <= RATIO[1]:
        reason = f"a weight of 1.0 moved {least:.3g} to {most:.3g} times as far as in float64 by {variant}"
        draft.fail(Status.INACCURATE, reason, "movement")


def _judge_finite(draft: Draft, parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    for name, parameter in parameters.items():
        if not parameter.isfinite().all():
            lost = lost_eps(optimizer, parameter)
            reason = f"{name} is NaN or Inf" + (f": {lost}" if lost else "")
            raise Fault(Status.NONFINITE, reason, "format" if lost else "backend")


def _feed(lab: Lab, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = lab.place(gradient)


def _feed_exactly(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()


PROBES: tuple[Probe, ...] = (
    Probe("optim.forms", forms, tuple(FORMS), STORED),
    Probe("optim.eps", eps, tuple(_EPS), STORED),
    Probe("optim.vanishing", vanishing, (*_TINY, "ema"), STORED),
)
