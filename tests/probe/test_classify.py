"""Which status an exception means."""

from __future__ import annotations

import pytest
import torch

from amp_matrix.survey import Status
from amp_probe.harness.classify import classify


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'"), Status.UNSUPPORTED),
        (
            NotImplementedError("The operator 'aten::x' is not currently implemented for the MPS device"),
            Status.UNSUPPORTED,
        ),
        (ValueError("Attempting to unscale FP16 gradients."), Status.UNSUPPORTED),
        (RuntimeError("MPS BFloat16 is only supported on MacOS 14 or newer"), Status.UNSUPPORTED),
        (RuntimeError("CUDA error: operation not supported"), Status.ERROR),
        (RuntimeError("CUDA error: the provided PTX was compiled with an unsupported toolchain."), Status.ERROR),
        (RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED when calling cublasGemmEx"), Status.ERROR),
        (
            RuntimeError("Expected scalar_type == ScalarType::Float || inputTensor.scalar_type() == ScalarType::Int"),
            Status.ERROR,
        ),
        (RuntimeError("expected scalar type Half but found Float"), Status.ERROR),
        (RuntimeError("Undefined type BFloat16"), Status.ERROR),
        (ValueError("unsupported operand"), Status.ERROR),
        (KeyboardInterrupt(), Status.ERROR),
        (MemoryError(), Status.NOT_RUN),
        (torch.OutOfMemoryError("CUDA out of memory."), Status.NOT_RUN),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
            Status.NOT_RUN,
        ),
    ],
)
def test_an_exceptions_status(error: BaseException, status: Status) -> None:
    assert classify(error).status is status
