"""Copies between the host and the device, and casts: `copy.roundtrip`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from amp_matrix.survey import Status
from amp_probe import precisions
from amp_probe.case import Script
from amp_probe.draw import Draw
from amp_probe.harness.recorder import Draft
from amp_probe.harness.script import Lab
from amp_probe.suite import Probe

_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda t: t,
    "transposed": lambda t: t.T,
    "every second column": lambda t: t[:, ::2],
    "offset": lambda t: t[3:, 5:],
    "expanded": lambda t: t[:, :1].expand(-1, 7),
    "one number": lambda t: t[2, 3],
}
_ROWS, _COLUMNS = 24, 40


def roundtrip(draw: Draw) -> Script:
    """Host to device and back, and casts on the device between float32 and the low dtype: exact, views too.

    Would have caught a copy of a strided or offset view that takes the wrong elements, a cast that truncates where it
    should round to nearest, one that loses NaN, infinities or the sign of zero, and a strided write that spills over.
    """
    grid, full = draw.normal(_ROWS, _COLUMNS, scale=8.0), draw.full_mantissa(_ROWS, _COLUMNS)

    def run(lab: Lab) -> None:
        with lab.stage("copy") as draft:
            _copies(lab, draft, grid.to(lab.storage), draw.integers(_ROWS, _COLUMNS, low=-(2**40), high=2**40))
        with lab.stage("cast") as draft:
            _casts(lab, draft, grid.float())
        with lab.stage("round") as draft:
            _rounds(lab, draft, full.float())
        with lab.stage("special") as draft:
            _special(lab, draft)
        with lab.stage("write") as draft:
            _writes(lab, draft, grid.to(lab.storage))

    return Script(run)


def _copies(lab: Lab, draft: Draft, values: Tensor, whole: Tensor) -> None:
    """To the device as a view of the host's memory, and back as a view of the device's."""
    for tensor in (values, whole, whole % 2 == 0):
        there = tensor.to(lab.device)
        for name, view in _VIEWS.items():
            kind = f"{precisions.name(tensor.dtype)}, {name}"
            _equal(draft, f"to the device ({kind})", view(tensor).to(lab.device).clone().cpu(), view(tensor))
            _equal(draft, f"to the host ({kind})", view(there).cpu(), view(tensor))


def _casts(lab: Lab, draft: Draft, values: Tensor) -> None:
    """Values on the grid are exact in both dtypes, so casting there and back changes nothing."""
    there = values.to(lab.device)
    for name, view in _VIEWS.items():
        low = view(there).to(lab.low)
        if low.dtype != lab.low:
            draft.fail(Status.INERT, f"a cast to {precisions.name(lab.low)} gave {precisions.name(low.dtype)}", "dtype")
        _equal(draft, f"cast to {precisions.name(lab.low)} ({name})", low.cpu().float(), view(values))
        _equal(draft, f"cast back ({name})", low.float().cpu(), view(values))
        at_once = view(values).to(lab.device, lab.low).cpu().float()
        _equal(draft, f"copy and cast at once ({name})", at_once, view(values))


def _rounds(lab: Lab, draft: Draft, values: Tensor) -> None:
    """Values off the grid go to the nearest neighbour: at most half the distance between neighbours away."""
    got = values.to(lab.device).to(lab.low).cpu().double()
    _, exponent = torch.frexp(values.double())
    half = torch.ldexp(torch.ones_like(got), exponent - 2) * torch.finfo(lab.low).eps
    off = ((got - values.double()).abs() / half).max()
    draft.numbers["half_ulps"] = float(off)
    if not off <= 1.0:
        draft.fail(Status.INACCURATE, f"a cast rounds {float(off):.3g} halves of a unit in the last place off", "round")


def _special(lab: Lab, draft: Draft) -> None:
    """NaN, infinities, the largest numbers, both zeros, and ties, which go to the even neighbour."""
    info, inf = torch.finfo(lab.low), float("inf")
    ties = [] if lab.low is torch.float32 else [1 + info.eps / 2, 1 + 3 * info.eps / 2]
    given = torch.tensor([float("nan"), inf, -inf, info.max, info.min, 0.0, -0.0, *ties], dtype=torch.float32)
    right = given.clone()
    right[7:] = torch.tensor([1.0, 1 + 2 * info.eps][: len(ties)])
    got = given.to(lab.device).to(lab.low).cpu().float()
    same = torch.equal(got.nan_to_num(7.0, inf, -inf), right.nan_to_num(7.0, inf, -inf))
    if (
        not same
        or not torch.equal(got.isnan(), right.isnan())
        or not torch.equal(got.signbit()[1:], right.signbit()[1:])
    ):
        draft.fail(Status.INACCURATE, f"a cast of {given.tolist()} gave {got.tolist()}", "special")


def _writes(lab: Lab, draft: Draft, values: Tensor) -> None:
    """Into a strided part of a tensor on the device: that part changes, and nothing beside it."""
    target = torch.full((_ROWS, 2 * _COLUMNS), -1.0, dtype=lab.storage, device=lab.device)
    target[:, 1::2].copy_(values)
    _equal(draft, "a write into every second column", target.cpu()[:, 1::2], values)
    _equal(draft, "what stands beside a write", target.cpu()[:, ::2], torch.full_like(values, -1.0))


def _equal(draft: Draft, what: str, got: Tensor, right: Tensor) -> None:
    if got.shape != right.shape or got.dtype != right.dtype:
        draft.fail(Status.INACCURATE, f"{what} gave {precisions.name(got.dtype)} {tuple(got.shape)}", "shape")
    elif not torch.equal(got, right):
        count = int((got != right).sum())
        draft.fail(Status.INACCURATE, f"{what} changed {count} of {right.numel()} values", "exact")


PROBES: tuple[Probe, ...] = (Probe("copy.roundtrip", roundtrip),)
