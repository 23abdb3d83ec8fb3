"""The two error numbers of a tensor, and the limits that they are judged by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from amp_matrix.survey import Status, TensorError
from amp_probe.draw import Draw
from amp_probe.ideal import Ideal, run_ideal

__all__ = [
    "LIMITS",
    "Draw",
    "Errors",
    "Ideal",
    "Judgement",
    "compare",
    "gradient_floor",
    "judgeable",
    "measure",
    "run_ideal",
]


class Limits(NamedTuple):
    """Every number that the judgement rests on, calibrated together (docs/numerics.md)."""

    n_factor: float = 3.0
    s_factor: float = 4.0
    least_ideal: float = 0.5
    fp32_n: float = 64.0
    kept_n: float = 4.0
    ill_conditioned: float = 0.25
    gradient_floor: float = 1e-3
    slice_floor: float = 1e-2
    slice_size: int = 32

    @property
    def least_n(self) -> float:
        """The smallest limit of n there is: at or below it no ideal run is needed."""
        return self.n_factor * self.least_ideal

    @property
    def least_s(self) -> float:
        """The smallest limit of s there is."""
        return self.s_factor * self.least_ideal

    @property
    def kept_s(self) -> float:
        """The limit of s that goes with `kept_n`, in the same proportion as everywhere."""
        return self.kept_n * self.s_factor / self.n_factor


LIMITS = Limits()
_FP32_EPS = 2.0**-23


class Errors(NamedTuple):
    """n: the error of the whole tensor, s: of its worst slice; both relative, in eps."""

    n: float
    s: float


class Judgement(NamedTuple):
    """The errors of one tensor with their limits, the status that they mean, and why."""

    error: TensorError
    status: Status
    reason: str
    code: str


def gradient_floor(references: Iterable[Tensor]) -> float:
    """1e-3 of the largest per-element rms among a cell's reference gradients: what `compare` takes as `floor`."""
    rms = [float(r.double().square().mean().sqrt()) for r in references if r.numel()]
    return LIMITS.gradient_floor * max((x for x in rms if math.isfinite(x)), default=0.0)


def measure(got: Tensor, reference: Tensor, eps: float, floor: float = 0.0) -> Errors:
    """n and s of a finite float64 tensor against a finite float64 reference of the same shape, both on the CPU."""
    wrong, right = (got - reference).square_(), reference.square()
    n = _ratio(float(wrong.sum()), float(right.sum()), floor * math.sqrt(reference.numel())) / eps
    return Errors(n, max((_worst_slice(wrong, right, dim, floor) for dim in range(right.dim())), default=0.0) / eps)


def compare(
    name: str,
    got: Tensor,
    reference: Tensor,
    eps: float,
    ideal: Tensor | Callable[[], Tensor | None] | None = None,
    *,
    floor: float = 0.0,
    exact: bool = False,
    beside: bool = False,
) -> Judgement:
    """Judge a tensor from any device against its float64 reference on the CPU.

    `ideal` is the same tensor of the ideal run, or a callable that gives it and is called only where the tensor is
    over the smallest limits (fp32_n alone in fp32); it gives None where the run had to keep a device's value (the
    limits are then kept_n and kept_s). Without an ideal the smallest limits hold. `floor` is `gradient_floor` for
    gradients, 0 for outputs. Raises ValueError where no value of the reference is finite, for then nothing is judged
    but the kinds of NaN and Inf; not with `beside`: other tensors of the stage are judged.
    """
    if got.shape != reference.shape:
        reason = f"{name} has shape {tuple(got.shape)}, the reference {tuple(reference.shape)}"
        return Judgement(_error(name, got, Errors(math.inf, math.inf), 0.0, 0.0), Status.INACCURATE, reason, "shape")
    values = got.detach().cpu().double()
    judged = _representable(reference, got.dtype)
    if not beside and not judgeable(reference):
        raise ValueError(f"{name}: no value of the reference is finite, so nothing is judged")
    broken = _broken(name, got, values, reference, judged, ideal)
    if broken is not None:
        return broken
    values, right = torch.where(judged, values, 0.0), torch.where(judged, reference, 0.0)
    errors = measure(values, right, eps, floor)
    if exact:
        judgement = _verdict(name, got, errors, Errors(0.0, 0.0))
        return judgement._replace(code=judgement.code and "exact")
    least = Errors(LIMITS.fp32_n, math.inf) if eps == _FP32_EPS else Errors(LIMITS.least_n, LIMITS.least_s)
    if ideal is None or (errors.n <= least.n and errors.s <= least.s):
        return _verdict(name, got, errors, least)
    best = ideal() if callable(ideal) else ideal
    if best is None:
        return _verdict(name, got, errors, Errors(max(least.n, LIMITS.kept_n), max(least.s, LIMITS.kept_s)))
    lost = measure(torch.where(judged, best.cpu().double(), 0.0), right, eps, floor)
    return _against_ideal(name, got, errors, lost, least, eps)


def _against_ideal(name: str, got: Tensor, errors: Errors, ideal: Errors, least: Errors, eps: float) -> Judgement:
    limits = Errors(max(least.n, LIMITS.n_factor * ideal.n), max(least.s, LIMITS.s_factor * ideal.s))
    if not ideal.n * eps <= LIMITS.ill_conditioned:
        reason = f"{name}: ill-conditioned in this format: a perfect implementation is {ideal.n:.3g} eps off"
        return Judgement(_error(name, got, errors, *limits), Status.NOT_RUN, reason, "ill_conditioned")
    return _verdict(name, got, errors, limits)


def _verdict(name: str, got: Tensor, errors: Errors, limits: Errors) -> Judgement:
    error = _error(name, got, errors, *limits)
    if not errors.n <= limits.n:
        return Judgement(error, Status.INACCURATE, f"{name}: {errors.n:.3g} eps off, limit {limits.n:.3g}", "n")
    if not errors.s <= limits.s:
        reason = f"{name}: a slice is {errors.s:.3g} eps off, limit {limits.s:.3g}"
        return Judgement(error, Status.INACCURATE, reason, "s")
    return Judgement(error, Status.OK, "", "")


def _error(name: str, got: Tensor, errors: Errors, n_limit: float, s_limit: float) -> TensorError:
    n, s, n_limit, s_limit = (float(f"{x:.6g}") for x in (*errors, n_limit, s_limit))  # more digits say nothing
    return TensorError(name, _dtype(got), n, n_limit, s, s_limit)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def judgeable(reference: Tensor) -> bool:
    """Whether a reference has a finite value (or none at all), so that a tensor can be judged by it."""
    return reference.numel() == 0 or bool(reference.isfinite().any())


def _representable(reference: Tensor, dtype: torch.dtype) -> Tensor:
    largest = torch.finfo(dtype).max if dtype.is_floating_point else math.inf
    return reference.isfinite() & (reference.abs() <= largest)


def _broken(
    name: str,
    got: Tensor,
    values: Tensor,
    reference: Tensor,
    judged: Tensor,
    ideal: Tensor | Callable[[], Tensor | None] | None,
) -> Judgement | None:
    """The judgement of a tensor that is not finite where it must be, or finite where the reference is not."""
    finite, error = values.isfinite(), _error(name, got, Errors(math.nan, math.nan), 0.0, 0.0)
    if (judged & ~finite).any():
        best = ideal() if callable(ideal) else ideal
        code = (
            "format"
            if best is not None and not torch.where(judged, best.cpu().double(), 0.0).isfinite().all()
            else "backend"
        )
        count = int((judged & ~finite).sum())
        reason = f"{name}: NaN or Inf in {count} of {values.numel()} values where the reference is finite ({code})"
        return Judgement(error, Status.NONFINITE, reason, code)
    if (finite & ~reference.isfinite()).any():
        return Judgement(error, Status.INACCURATE, f"{name}: finite where the reference is NaN or Inf", "swallowed")
    if _other_kind(got, values, reference, ideal):
        reason = f"{name}: not the NaN or infinity that the reference is, or is beyond this format's largest number"
        return Judgement(error, Status.INACCURATE, reason, "infinity")
    return None


def _other_kind(
    got: Tensor, values: Tensor, reference: Tensor, ideal: Tensor | Callable[[], Tensor | None] | None
) -> bool:
    """Whether a value that cannot be compared with the reference is not of its kind.

    Where the reference is NaN or infinite, so must the value be, with its sign. Where it is beyond the format, the
    value must be infinite with its sign or saturated, up to kept_n eps below the largest number: what is nearly too
    large may be rounded to either side. NaN is right there only where the ideal run has it too, as of inf - inf.
    """
    wrong = (reference.isinf() & (values != reference)) | (reference.isnan() & ~values.isnan())
    if not got.dtype.is_floating_point:
        return bool(wrong.any())
    info = torch.finfo(got.dtype)
    beyond = reference.isfinite() & (reference.abs() > info.max)
    lost = beyond & values.isnan()
    wrong |= beyond & ~lost & (values * reference.sign() < info.max * (1.0 - LIMITS.kept_n * info.eps))
    if lost.any():
        best = ideal() if callable(ideal) else ideal
        wrong |= lost if best is None else lost & ~best.cpu().isnan()
    return bool(wrong.any())


def _worst_slice(wrong: Tensor, right: Tensor, dim: int, floor: float) -> float:
    count = right.shape[dim]
    size = right.numel() // count if count else 0
    if size < LIMITS.slice_size:
        return 0.0
    others = [d for d in range(right.dim()) if d != dim]
    off, norm = wrong.sum(others), right.sum(others)
    least = max(LIMITS.slice_floor * math.sqrt(float(norm.mean())), floor * math.sqrt(size))
    if least == 0.0:
        return math.inf if off.any() else 0.0
    return float((off.sqrt() / (norm.sqrt() + least)).max())


def _ratio(wrong: float, right: float, floor: float) -> float:
    below = math.sqrt(right) + floor
    if below == 0.0:
        return math.inf if wrong else 0.0
    return math.sqrt(wrong) / below
