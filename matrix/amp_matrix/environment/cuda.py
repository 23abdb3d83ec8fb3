"""What identifies a CUDA device. Before CUDA is initialised NVML is asked, for a context would cost seconds."""

from __future__ import annotations

import functools
import operator
import os
from typing import NamedTuple

from amp_matrix.environment import nvml
from amp_matrix.environment.common import flag, variable, version
from amp_matrix.environment.errors import CaptureError
from amp_matrix.environment.nvml import Gpu
from amp_matrix.environment.visible import pick
from amp_matrix.survey import Environment

_SDP = ("flash", "mem_efficient", "math", "cudnn")
_REDUCTIONS = (
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_accumulation",
)


class Build(NamedTuple):
    """The libraries that torch was built for or has loaded; "" where it has none."""

    cuda: str
    hip: str
    cudnn: str


def read(index: int, may_initialize: bool = False) -> Environment:
    """The fields of `cuda:<index>`; CaptureError where it cannot be named for certain."""
    import torch

    if not torch.version.cuda and not torch.version.hip:
        raise CaptureError("torch built without CUDA")
    gpu = _gpu(index, may_initialize)
    if not gpu.name or not gpu.multiprocessors:
        raise CaptureError("the driver does not tell the GPU's name or size; call torch.cuda.init() first")
    driver = _driver()
    build = Build(
        cuda=torch.version.cuda or "",
        hip=torch.version.hip or "",
        cudnn=str(torch.backends.cudnn.version() or ""),  # type: ignore[no-untyped-call]
    )
    return Environment(
        identity=identify(gpu, driver, build) | {"gcn_arch": _gcn_arch(index)},
        scoped=_flags(),
        recorded={
            "driver_patch": driver,
            "cublaslt": version("nvidia-cublas") or version(f"nvidia-cublas-cu{(torch.version.cuda or '')[:2]}"),
            "memory": str(gpu.memory),
            "uuid": gpu.uuid,
            "cudnn_benchmark": flag(lambda: torch.backends.cudnn.benchmark),
            "cudnn_deterministic": flag(lambda: torch.backends.cudnn.deterministic),
        },
    )


def identify(gpu: Gpu, driver: str, build: Build) -> dict[str, str]:
    """The identity's fields of a GPU or MIG slice under a driver (`550.54.15`, of which the branch counts)."""
    return {
        "name": gpu.name,
        "capability": gpu.capability,
        "multiprocessors": str(gpu.multiprocessors),
        "cuda": build.cuda,
        "hip": build.hip,
        "cudnn": build.cudnn,
        "driver": driver.partition(".")[0],
    }


def _gpu(index: int, may_initialize: bool) -> Gpu:
    """The device by torch's word where CUDA is initialised, else by NVML's."""
    import torch

    if may_initialize or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return _as_torch_says(index)
    if torch.version.hip:
        raise CaptureError("an AMD GPU is known only once HIP is initialised; call torch.cuda.init() first")
    try:
        gpus = nvml.driver().gpus
    except nvml.NvmlError as error:
        raise CaptureError(str(error)) from None
    return pick(index, gpus, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER", ""))


def _as_torch_says(index: int) -> Gpu:
    import torch

    try:
        found = torch.cuda.get_device_properties(index)
    except (RuntimeError, AssertionError) as error:  # no driver, a forked process, no such index
        raise CaptureError(f"torch cannot open cuda:{index}: {' '.join(str(error).split())}") from None
    return Gpu(
        name=found.name,
        capability=f"{found.major}.{found.minor}",
        multiprocessors=found.multi_processor_count,
        memory=found.total_memory,
        uuid=str(getattr(found, "uuid", "")),
    )


def _gcn_arch(index: int) -> str:
    """An AMD GPU's architecture without its feature suffixes; the caller has made sure that HIP is initialised."""
    import torch

    if not torch.version.hip:
        return ""
    return str(getattr(torch.cuda.get_device_properties(index), "gcnArchName", ""))


def _driver() -> str:
    """The kernel driver's version, or "" where nothing tells it."""
    import torch

    if not torch.version.hip:
        return nvml.driver_version()
    try:
        with open("/sys/module/amdgpu/version", encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _flags() -> dict[str, str]:
    """Settings that let matmuls and attention add in a narrower format or another order."""
    import torch

    cuda = torch.backends.cuda
    enabled = {n: flag(getattr(cuda, f"{n}_sdp_enabled", lambda: False)) for n in _SDP}
    return {
        **{n: flag(functools.partial(operator.attrgetter(n), cuda.matmul)) for n in _REDUCTIONS},
        "NVIDIA_TF32_OVERRIDE": variable("NVIDIA_TF32_OVERRIDE"),
        "preferred_blas": flag(cuda.preferred_blas_library).rpartition(".")[2],
        "sdp_backends": ",".join(n for n, on in enabled.items() if on == "yes"),
    }
