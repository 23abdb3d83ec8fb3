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
        (RuntimeError("\"softmax_lastdim_kernel_impl\" not implemented for 'Half'"), Status.UNSUPPORTED),
        (RuntimeError("linalg.inv: Low precision dtypes not supported. Got BFloat16"), Status.UNSUPPORTED),
        (RuntimeError("Unsupported dtype BFloat16"), Status.UNSUPPORTED),
        (RuntimeError("FlashAttention only supports Ampere GPUs or newer."), Status.UNSUPPORTED),
        (RuntimeError("mkldnn_gelu: fast, approximate gelu is not supported"), Status.UNSUPPORTED),
        (RuntimeError("float8 is not supported on this device"), Status.UNSUPPORTED),
        (RuntimeError("CUDA error: operation not supported"), Status.ERROR),
        (RuntimeError("HIP error: operation not supported when the stream is capturing"), Status.ERROR),
        (RuntimeError("MPS backend error: not supported"), Status.ERROR),
        (RuntimeError("XPU error: feature is not supported"), Status.ERROR),
        (RuntimeError("operation not supported"), Status.ERROR),
        (RuntimeError("the installed driver does not support this"), Status.ERROR),
        (RuntimeError('t.defined() INTERNAL ASSERT FAILED at "a.cpp":9, unsupported type'), Status.ERROR),
        (RuntimeError("unsupported feature"), Status.ERROR),
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
