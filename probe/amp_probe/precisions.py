"""How each precision is entered and left, and how to see that it was in effect."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from amp_matrix.precision import Precision
from amp_matrix.survey import Status, TensorError
from amp_probe.harness.recorder import Fault
from amp_probe.numerics import LIMITS

_TF32_EPS, _FP32_EPS = Precision("tf32").eps, Precision("fp32").eps


def storage(precision: Precision) -> torch.dtype:
    """The dtype of parameters and inputs."""
    return _dtype(precision.storage)


def low(precision: Precision) -> torch.dtype:
    """The dtype that arithmetic is asked for in."""
    return _dtype(precision.dtype)


def refusal(precision: Precision, device: torch.device) -> str:
    """Why the precision cannot be asked of the device at all, or ""."""
    if precision.compute == "tf32":
        return _no_tf32(device)
    if precision.recipe != "none":
        return f"the FP8 recipe {precision.recipe} is not probed by this version"
    if precision.mixed and not torch.amp.is_autocast_available(device.type):
        return f"torch.autocast does not know {device.type}"
    return ""


def hold(precision: Precision) -> AbstractContextManager[None]:
    """What stays on for a whole cell, backward and optimizer included: TF32's flags. Autocast is for `enter` alone."""
    return _allow_tf32() if precision.compute == "tf32" else nullcontext()


def enter(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """The context in which a forward pass runs in the precision: autocast with its dtype, TF32 allowed, or nothing.

    Raises Fault(inert) on entry where torch.autocast turned itself off (pytorch#139190) or took another dtype, and
    where NVIDIA_TF32_OVERRIDE=0 keeps NVIDIA's libraries from TF32 whatever torch allows.
    """
    if precision.mixed:
        return _autocast(device.type, low(precision))
    return _tf32() if precision.compute == "tf32" else nullcontext()


def in_effect(precision: Precision, outputs: Iterable[Tensor], wide: bool = False) -> str:
    """What says that the outputs did not come from the precision asked for, or "".

    Mixed: float32 is fine, since autocast keeps some operators there. `wide`: float32 is fine in `*-true` too.
    """
    allowed = {low(precision)} | ({torch.float32} if precision.mixed or wide else set())
    odd = sorted({name(o.dtype) for o in outputs if o.is_floating_point() and o.dtype not in allowed})
    return f"output is {', '.join(odd)}, asked for {precision.dtype}" if odd else ""


def tf32_absent(errors: Iterable[TensorError]) -> str:
    """What says that products of full mantissas, in TF32's eps, were computed in float32 after all, or "".

    Rounding the operands to 10 bits costs about 0.3 eps of TF32, 2,400 of fp32; right float32 is within 64 of fp32.
    """
    largest = max((e.n for e in errors if not math.isnan(e.n)), default=math.inf) * _TF32_EPS / _FP32_EPS
    if largest > LIMITS.fp32_n:
        return ""
    return f"no more than {largest:.3g} eps of fp32 off: the products were computed in float32, not TF32"


def name(dtype: torch.dtype) -> str:
    """A dtype as a document writes it: `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def _dtype(text: str) -> torch.dtype:
    dtype = getattr(torch, text)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _no_tf32(device: torch.device) -> str:
    """Why products on the device cannot be TF32, or ""."""
    if device.type != "cuda":
        return f"TF32 is a format of CUDA devices; {device.type} has none"
    if torch.version.hip:
        return "TF32 is a format of NVIDIA devices; ROCm has none here"
    major, minor = torch.cuda.get_device_capability(device)
    return "" if major >= 8 else f"TF32 needs compute capability 8.0; this device is {major}.{minor}"


@contextmanager
def _autocast(device_type: str, dtype: torch.dtype) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        region = torch.autocast(device_type, dtype=dtype)
    with region:
        if not torch.is_autocast_enabled(device_type):
            why = f": {caught[0].message}" if caught else ""
            raise Fault(Status.INERT, f"torch.autocast turned itself off{why}", "autocast_off")
        if torch.get_autocast_dtype(device_type) != dtype:
            got = name(torch.get_autocast_dtype(device_type))
            raise Fault(Status.INERT, f"torch.autocast took {got}, asked for {name(dtype)}", "autocast_dtype")
        yield


@contextmanager
def _tf32() -> Iterator[None]:
    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        raise Fault(Status.INERT, "NVIDIA_TF32_OVERRIDE=0 keeps NVIDIA's libraries from TF32", "tf32_override")
    with _allow_tf32():
        yield


@contextmanager
def _allow_tf32() -> Iterator[None]:
    """TF32 for products and convolutions.

    By the flags that every torch has: after a use of the newer `fp32_precision`, reading these raises.
    """
    owners: tuple[Any, Any] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.9 advises the newer names
        before = [owner.allow_tf32 for owner in owners]
    try:
        _set_tf32(owners, (True, True))
        yield
    finally:
        _set_tf32(owners, before)


def _set_tf32(owners: Iterable[Any], values: Iterable[bool]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for owner, value in zip(owners, values, strict=True):
            owner.allow_tf32 = value
