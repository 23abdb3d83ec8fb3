"""What torch.autocast does: `autocast.applies` (is a mixed precision in effect at all), `autocast.region`."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_matrix.survey import Status
from amp_probe import precisions
from amp_probe.case import Script
from amp_probe.draw import Draw
from amp_probe.harness.problem import Problem, judge_gradients, problem
from amp_probe.harness.recorder import Draft
from amp_probe.harness.script import Lab
from amp_probe.probes.models import MLP, numbers, squared_error
from amp_probe.suite import Probe

_MIXED = ("bf16-mixed", "fp16-mixed")


def applies(draw: Draw) -> Script:
    """A matmul, a `linear` or an `attention` under torch.autocast over float32: the output has the asked dtype.

    What counts is the dtype of what came out, never what autocast says of itself. Would have caught pytorch#139190
    (autocast warns and turns itself off), a default dtype taken for the asked one, a downgrade to float32 in silence
    (accelerate's cpu with fp16), and float16 that is computed as bfloat16.
    """
    work, values = _WORK[draw.variant](draw)

    def run(lab: Lab) -> None:
        with lab.stage("build"):
            inputs = [lab.place(v, grad=True) for v in values]
        with lab.stage("infer") as draft, torch.no_grad():
            _observe(lab, draft, "under no_grad", work, inputs, values)
        with lab.stage("forward") as draft:
            _observe(lab, draft, "with a graph", work, inputs, values)
        with lab.stage("leave") as draft:
            after = work(*inputs)
            if after.dtype != torch.float32:
                draft.fail(
                    Status.ERROR, f"after the region the output is still {precisions.name(after.dtype)}", "stays"
                )

    return Script(run)


def region(draw: Draw) -> Script:
    """Work inside one long autocast region, whose cache keeps the casts of weights until it ends.

    `loop`: a whole training loop inside it. The casts go stale, and the loss never moves (Flow-Factory PR 186), which
    is `inert`; torch does so on every device. `no_grad_first`: a forward pass under no_grad, then one with a graph
    (pytorch#112583): the weights must get gradients.
    """
    posed = problem(MLP, squared_error, numbers(draw), draw)
    return Script(functools.partial(_loop if draw.variant == "loop" else _no_grad_first, posed))


def _loop(posed: Problem, lab: Lab) -> None:
    with lab.stage("build"):
        model = posed.on(lab)
        x, target = lab.place(posed.batch[0]), lab.place(posed.batch[1])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lab.stage("steps") as draft:
        losses = []
        with lab.enter():
            for _ in range(5):
                optimizer.zero_grad()
                loss = posed.loss(model(x), target)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                losses.append(float(loss.detach()))
        draft.curves["loss"] = tuple(losses)
        if len(set(losses)) == 1:
            draft.fail(Status.INERT, f"the loss stayed at {losses[0]:.6g} for {len(losses)} steps", "unmoved")


def _no_grad_first(posed: Problem, lab: Lab) -> None:
    with lab.stage("build"):
        model = posed.on(lab)
        x, target = lab.place(posed.batch[0]), lab.place(posed.batch[1])
        parameters = dict(model.named_parameters())
        _, right = posed.exact(parameters)
    with lab.stage("forward"), lab.enter():
        with torch.no_grad():
            model(x)
        loss = posed.loss(model(x), target)
    with lab.stage("backward") as draft:
        loss.backward()  # type: ignore[no-untyped-call]
        judge_gradients(lab, draft, model, right, posed.ideal(lab, parameters))


def _observe(
    lab: Lab, draft: Draft, where: str, work: Callable[..., Tensor], inputs: list[Tensor], values: list[Tensor]
) -> None:
    with lab.enter():
        output = work(*inputs)
    if output.dtype != lab.low:
        got, wanted = precisions.name(output.dtype), precisions.name(lab.low)
        draft.fail(Status.INERT, f"the output {where} is {got}, asked for {wanted}", "dtype")
    with torch.no_grad():
        lab.judge(draft, "output", output, work(*values), lab.ideal(lambda: _again(lab, work, inputs)))


def _again(lab: Lab, work: Callable[..., Tensor], inputs: list[Tensor]) -> Tensor:
    with torch.no_grad(), lab.enter():
        return work(*inputs)


def _matmul(draw: Draw) -> tuple[Callable[..., Tensor], list[Tensor]]:
    return torch.matmul, [draw.normal(24, 40), draw.normal(40, 32)]


def _linear(draw: Draw) -> tuple[Callable[..., Tensor], list[Tensor]]:
    return F.linear, [draw.normal(4, 6, 40), draw.normal(32, 40), draw.normal(32)]


def _attention(draw: Draw) -> tuple[Callable[..., Tensor], list[Tensor]]:
    return F.scaled_dot_product_attention, [draw.normal(2, 3, 16, 8) for _ in range(3)]


_WORK = {"base": _matmul, "linear": _linear, "attention": _attention}

PROBES: tuple[Probe, ...] = (
    Probe("autocast.applies", applies, tuple(_WORK), _MIXED),
    Probe("autocast.region", region, ("loop", "no_grad_first"), _MIXED),
)
