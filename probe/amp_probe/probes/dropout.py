"""Random masks: `op.dropout`, which no reference can equal and which must still obey the laws of its mask."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_matrix.survey import Status
from amp_probe.case import Script
from amp_probe.draw import Draw
from amp_probe.harness.recorder import Draft
from amp_probe.harness.script import Lab
from amp_probe.suite import Probe

_ROWS, _COLUMNS = 256, 128
_SIGMAS = 6.0
_SHARES = {"rare": 2.0**-7, "frequent": 1 - 2.0**-5, "half": 0.5}
_SEED = 20_240_101


def dropout(draw: Draw) -> Script:
    """`F.dropout(x, p)`: kept values are x / (1 - p), a share of p is 0 wherever one looks, and backward has the mask.

    Would have caught a share that is drawn from low-precision uniform numbers (`rare`, `frequent`: off by their
    spacing), a scale rounded before it is used, another mask in backward, a mask that repeats from call to call, and a
    seed that is not obeyed.
    """
    return Script(run=lambda lab: _run(lab, _SHARES.get(draw.variant, 0.25)))


def _run(lab: Lab, p: float) -> None:
    values = lab.draw.uniform(_ROWS, _COLUMNS, low=1.0, high=4.0)
    with lab.stage("build"):
        x = lab.place(values, grad=True)
    with lab.stage("infer") as draft, torch.no_grad():
        first, again, other = (_drop(lab, x, p, seed) for seed in (_SEED, _SEED, None))
        _check_mask(lab, draft, values, first, p)
        if not torch.equal(first, again):
            draft.fail(Status.INACCURATE, "the same seed gave another mask", "seed")
        if torch.equal(first == 0, other == 0):
            draft.fail(Status.INACCURATE, "two calls drew the same mask", "repeated")
    with lab.stage("forward") as draft:
        out = _drop(lab, x, p, None)
        _check_mask(lab, draft, values, out, p)
    with lab.stage("backward") as draft:
        cotangent = lab.draw.normal(_ROWS, _COLUMNS)
        (gradient,) = torch.autograd.grad(out, [x], cotangent.to(out.dtype).to(out.device))
        kept = out.detach().cpu() != 0
        lab.judge(draft, "grad x", gradient, torch.where(kept, cotangent / (1 - p), 0.0))


def _drop(lab: Lab, x: Tensor, p: float, seed: int | None) -> Tensor:
    """Dropout of x in the precision, after seeding, or (None) from where the generator stands."""
    if seed is not None:
        torch.manual_seed(seed)
    with lab.enter():
        return F.dropout(x, p, training=True)


def _check_mask(lab: Lab, draft: Draft, values: Tensor, out: Tensor, p: float) -> None:
    zero = out.detach().cpu() == 0
    lab.judge(draft, "output", out, torch.where(zero, 0.0, values / (1 - p)))
    places = {"all": zero.view(1, -1), "a quarter": zero.view(4, -1), "a row": zero, "a column": zero.T}
    for place, rows in places.items():
        # Sigmas mean what they say only where both outcomes are expected tens of times.
        worst = _sigmas(rows.double(), p) if rows.shape[1] * min(p, 1 - p) > 20 else 0.0
        if worst > _SIGMAS:
            draft.fail(Status.INACCURATE, f"the share of zeros in {place} is {worst:.3g} sigma from {p:g}", "share")


def _sigmas(zero: Tensor, p: float) -> float:
    """How far the worst row's share of zeros is from p, in standard deviations (a tail of 1e-9 and less)."""
    off = (zero.mean(1) - p).abs().max()
    return float(off) / math.sqrt(p * (1 - p) / zero.shape[1])


PROBES: tuple[Probe, ...] = (Probe("op.dropout", dropout, ("base", *_SHARES)),)
