"""Whether torch.autocast is in effect at all: `autocast.applies`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_matrix.survey import Status
from amp_probe import precisions
from amp_probe.case import Script
from amp_probe.draw import Draw
from amp_probe.harness.recorder import Draft
from amp_probe.harness.script import Lab
from amp_probe.suite import Probe

_MIXED = ("bf16-mixed", "fp16-mixed")


def applies(draw: Draw) -> Script:
    """One product under torch.autocast over float32 (`linear` and `attention` too): the output has the asked dtype.

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


def _observe(
    lab: Lab, draft: Draft, where: str, work: Callable[..., Tensor], inputs: list[Tensor], values: list[Tensor]
) -> None:
    with lab.enter():
        output = work(*inputs)
    if output.dtype != lab.low:
        got, wanted = precisions.name(output.dtype), precisions.name(lab.low)
        draft.fail(Status.INERT, f"the output {where} is {got}, asked for {wanted}", "dtype")
    with torch.no_grad():
        # The smallest limits, whatever an ideal run gives: it would follow the device into another dtype.
        lab.judge(draft, "output", output, work(*values))


def _matmul(draw: Draw) -> tuple[Callable[..., Tensor], list[Tensor]]:
    return torch.matmul, [draw.normal(24, 40), draw.normal(40, 32)]


def _batched(draw: Draw) -> tuple[Callable[..., Tensor], list[Tensor]]:
    return torch.matmul, [draw.normal(2, 3, 12, 40), draw.normal(2, 3, 40, 16)]


def _bmm(draw: Draw) -> tuple[Callable[..., Tensor], list[Tensor]]:
    return torch.bmm, [draw.normal(6, 12, 40), draw.normal(6, 40, 16)]


def _linear(draw: Draw) -> tuple[Callable[..., Tensor], list[Tensor]]:
    return F.linear, [draw.normal(4, 6, 40), draw.normal(32, 40), draw.normal(32)]


def _attention(draw: Draw) -> tuple[Callable[..., Tensor], list[Tensor]]:
    return F.scaled_dot_product_attention, [draw.normal(2, 3, 16, 8) for _ in range(3)]


_WORK = {"base": _matmul, "linear": _linear, "attention": _attention, "batched": _batched, "bmm": _bmm}

PROBES: tuple[Probe, ...] = (Probe("autocast.applies", applies, tuple(_WORK), _MIXED),)
