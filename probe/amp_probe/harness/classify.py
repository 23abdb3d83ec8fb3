"""Which status an exception means: a clean refusal, exhausted memory, or an error."""

from __future__ import annotations

import re
from typing import NamedTuple

import torch

from amp_matrix.survey import Raised, Status
from amp_probe.scrub import scrub

_REFUSALS = re.compile(
    r"not implemented for|not supported|is not available|does(?: not|n't) support|only supports?"
    r"|unsupported (?:\w+ ){0,2}(?:dtype|type|data ?type|scalar ?type|memory format|device|input|output|combination)"
    r"|not yet supported|unsafe to autocast|requires? (?:torch|macOS|compute capability)",
    re.IGNORECASE,
)
_BROKEN = re.compile(
    r"(?:CUDA|HIP|XPU|SYCL|MPS backend|cuDNN|CUBLAS|ONEDNN) error|CUBLAS_STATUS|CUDNN_STATUS"
    r"|\bdriver\b|toolchain|operation not supported|INTERNAL ASSERT|device-side assert",
    re.IGNORECASE,
)
"""What a driver or a library says when it fails, whatever else is in the text: never a refusal by design."""
_BY_DESIGN = re.compile(r"Attempting to unscale FP16 gradients")
"""Refusals that come as a plain ValueError (pytorch#74739)."""
_MEMORY = re.compile(r"out of memory|DefaultCPUAllocator|can't allocate memory|not enough memory", re.IGNORECASE)


class Verdict(NamedTuple):
    """A status for an exception, the reason as a line and a word, and the exception as a record."""

    status: Status
    reason: str
    code: str
    exception: Raised


def classify(error: BaseException) -> Verdict:
    """Judge an exception by its type and text, as the table of statuses in the schema's README says."""
    text = scrub(str(error))
    raised = Raised(type=type(error).__name__, text=text)
    line = f"{raised.type}: {text}" if text else raised.type
    if out_of_memory(error):
        return Verdict(Status.NOT_RUN, "out of memory", "out_of_memory", raised)
    if _refused(error, text):
        return Verdict(Status.UNSUPPORTED, line, "refused", raised)
    return Verdict(Status.ERROR, line, "raised", raised)


def _refused(error: BaseException, text: str) -> bool:
    if isinstance(error, NotImplementedError):
        return True
    if _BROKEN.search(text):
        return False
    known = _REFUSALS if isinstance(error, RuntimeError) else _BY_DESIGN
    return isinstance(error, (RuntimeError, ValueError)) and bool(known.search(text))


def out_of_memory(error: BaseException) -> bool:
    """Whether the exception says that memory ran out, on any device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and bool(_MEMORY.search(str(error)))
