"""What identifies a CPU to torch: the instructions it may use, the libraries behind its matmuls, and denormals."""

from __future__ import annotations

import functools
import platform
import re
import sys
from collections.abc import Callable, Mapping
from typing import NamedTuple

from amp_matrix.environment.common import architecture, flag, variable
from amp_matrix.environment.sysctl import sysctl
from amp_matrix.survey import Environment

_NAMES = {
    "amx": ("amx_tile", "amx_tile"),
    "avx512_bf16": ("avx512_bf16", "avx512_bf16"),
    "avx512_fp16": ("avx512_fp16", "avx512_fp16"),
    "arm_bf16": ("bf16", "bf16"),
    "arm_fp16": ("fp16_arith", "asimdhp"),
}
"""An instruction set's field: its name in torch.cpu.get_capabilities(), and in /proc/cpuinfo."""

_DARWIN = {"arm_bf16": "hw.optional.arm.FEAT_BF16", "arm_fp16": "hw.optional.arm.FEAT_FP16"}


class Build(NamedTuple):
    """What torch.__config__ says of the libraries that torch was built with."""

    blas: str
    onednn: str


def read(index: int, may_initialize: bool = False) -> Environment:
    """The fields of the CPU. A process has one, so the index says nothing."""
    import torch

    build = built_with(_config())
    return Environment(
        identity={
            "cpu_capability": flag(lambda: torch.backends.cpu.get_cpu_capability()),
            **_instructions(),
            "ATEN_CPU_CAPABILITY": variable("ATEN_CPU_CAPABILITY"),
            "ONEDNN_MAX_CPU_ISA": isa_limit(variable("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")),
            "blas": build.blas,
            "mkldnn": mkldnn(),
            "flush_denormal": "yes" if flushes_denormals() else "no",
        },
        scoped={"ONEDNN_DEFAULT_FPMATH_MODE": variable("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")},
        recorded={"model": model(), "onednn": build.onednn},
    )


def built_with(config: str) -> Build:
    """The BLAS vendor and oneDNN's version from torch.__config__.show()'s text; "" for what it does not say."""
    blas = re.search(r"\bBLAS_INFO=(\w+)", config)
    onednn = re.search(r"(?:MKL-DNN|oneDNN) v(\d+(?:\.\d+)*)", config)
    return Build(blas[1] if blas else "", onednn[1] if onednn else "")


def isa_limit(value: str) -> str:
    """oneDNN's instruction limit; it reads the variable in any case, and DEFAULT is no limit."""
    return "" if value.upper() == "DEFAULT" else value.upper()


def mkldnn() -> str:
    """Whether torch may use oneDNN: `yes`, `no`, or `absent` from this build."""
    import torch

    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "absent"
    return flag(torch._C._get_mkldnn_enabled)


def flushes_denormals() -> bool:
    """Whether this thread flushes denormals; torch.set_flush_denormal has no getter, so half the least is tried."""
    return sys.float_info.min / 2.0 == 0.0


@functools.cache
def model() -> str:
    """The processor's model name, or ""."""
    return sysctl("machdep.cpu.brand_string") or _cpuinfo("model name") or platform.processor()


def instructions(arch: str, known: Callable[[str], bool], amx_granted: Callable[[], bool]) -> dict[str, str]:
    """Which low-precision instructions may be used. AMX also needs the kernel's leave, which `amx_granted` asks for."""
    fields = ("amx", "avx512_bf16", "avx512_fp16") if arch == "x86_64" else ("arm_bf16", "arm_fp16")
    usable = {f: known(f) and (f != "amx" or amx_granted()) for f in fields}
    return {f: "yes" if u else "no" for f, u in usable.items()}


@functools.cache
def _config() -> str:
    import torch

    return torch.__config__.show()


@functools.cache
def _instructions() -> dict[str, str]:
    import torch

    return instructions(architecture(), _has, lambda: bool(getattr(torch.cpu, "_init_amx", lambda: True)()))


def _has(field: str) -> bool:
    """Whether the processor has an instruction set: torch's word where it gives one, else the system's."""
    import torch

    ours, systems = _NAMES[field]
    asked: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    if ours in asked:
        return bool(asked[ours])
    if sys.platform == "darwin":
        return sysctl(_DARWIN.get(field, "")) == "1"
    return systems in _cpuinfo("flags" if architecture() == "x86_64" else "Features").split()


@functools.cache
def _cpuinfo(field: str) -> str:
    """The first value of a field in /proc/cpuinfo, or ""."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.split(":")[0].strip() == field), "")
    except OSError:
        return ""
