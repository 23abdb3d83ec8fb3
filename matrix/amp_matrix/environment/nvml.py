"""What the NVIDIA driver says of its GPUs, through NVML: it creates no CUDA context, and torch need not be loaded."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

_LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_CORES = {"6.0": 64, "7.0": 64, "7.2": 64, "7.5": 64, "8.0": 64}
"""CUDA cores in a multiprocessor, by compute capability; NVIDIA's other GPUs since Maxwell have 128."""
_UNKNOWN_FROM = 13
"""The first major capability that the number of cores is not known for."""


class NvmlError(RuntimeError):
    """The driver is absent or does not answer; the message says which, as a phrase."""


class Gpu(NamedTuple):
    """One GPU or one MIG slice, by the words that torch uses. `multiprocessors` is 0 where NVML cannot tell.

    `mig`: the GPU is cut into slices, which `slices` lists, and cannot be used whole.
    """

    name: str
    capability: str
    multiprocessors: int
    memory: int = 0
    uuid: str = ""
    mig: bool = False
    slices: tuple[Gpu, ...] = ()


class Driver(NamedTuple):
    """The driver's version (`550.54.15`) and its GPUs, in PCI order."""

    version: str
    gpus: tuple[Gpu, ...]


class _Attributes(ctypes.Structure):
    """nvmlDeviceAttributes_t."""

    _fields_ = (
        ("multiprocessors", ctypes.c_uint),
        ("others", ctypes.c_uint * 7),
        ("megabytes", ctypes.c_ulonglong),
    )


class _Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def driver() -> Driver:
    """The driver and its GPUs, read once in a process. NvmlError where there is no driver."""
    return _driver(os.getpid())


def driver_version() -> str:
    """The driver's version, or "" without one."""
    try:
        return driver().version
    except NvmlError:
        return ""


def multiprocessors(capability: str, cores: int) -> int:
    """A GPU's multiprocessors by its cores, which NVML counts instead; 0 where the capability is not known."""
    if int(capability.partition(".")[0]) >= _UNKNOWN_FROM:
        return 0
    return cores // _CORES.get(capability, 128)


@functools.cache
def _driver(pid: int) -> Driver:
    """Keyed on the process: a library initialised before a fork is not used after it."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise NvmlError("no NVIDIA driver") from None
    return read(functools.partial(_call, library))


def _call(library: Any, function: str, *arguments: Any) -> bool:
    """Call NVML; False where this driver has no such function or it fails."""
    call = getattr(library, function, None)
    return call is not None and call(*arguments) == 0


def read(call: Callable[..., bool]) -> Driver:
    """The driver as `call(function, *arguments)` tells it, which gives whether NVML did what was asked."""
    if not call("nvmlInit_v2"):
        raise NvmlError("the NVIDIA driver does not answer")
    count = ctypes.c_uint()
    if not call("nvmlDeviceGetCount_v2", ctypes.byref(count)):
        raise NvmlError("the NVIDIA driver does not count its devices")
    version = ctypes.create_string_buffer(80)
    call("nvmlSystemGetDriverVersion", version, 80)
    return Driver(_text(version), tuple(_gpu(call, i) for i in range(count.value)))


def _gpu(call: Callable[..., bool], index: int) -> Gpu:
    handle = ctypes.c_void_p()
    if not call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle)):
        raise NvmlError(f"the NVIDIA driver does not open its device {index}")
    major, minor, cores = ctypes.c_int(), ctypes.c_int(), ctypes.c_uint()
    if not call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor)):
        raise NvmlError(f"the NVIDIA driver does not tell the compute capability of its device {index}")
    call("nvmlDeviceGetNumGpuCores", handle, ctypes.byref(cores))
    capability = f"{major.value}.{minor.value}"
    mode, pending = ctypes.c_uint(), ctypes.c_uint()
    mig = call("nvmlDeviceGetMigMode", handle, ctypes.byref(mode), ctypes.byref(pending)) and mode.value == 1
    return Gpu(
        name=_string(call, "nvmlDeviceGetName", handle),
        capability=capability,
        multiprocessors=multiprocessors(capability, cores.value),
        memory=_memory(call, handle),
        uuid=_string(call, "nvmlDeviceGetUUID", handle),
        mig=mig,
        slices=_slices(call, handle, capability) if mig else (),
    )


def _slices(call: Callable[..., bool], parent: ctypes.c_void_p, capability: str) -> tuple[Gpu, ...]:
    count = ctypes.c_uint()
    call("nvmlDeviceGetMaxMigDeviceCount", parent, ctypes.byref(count))
    found = []
    for index in range(count.value):
        handle, attributes = ctypes.c_void_p(), _Attributes()
        if not call("nvmlDeviceGetMigDeviceHandleByIndex", parent, ctypes.c_uint(index), ctypes.byref(handle)):
            continue  # slots may be empty
        call("nvmlDeviceGetAttributes_v2", handle, ctypes.byref(attributes))
        name, uuid = _string(call, "nvmlDeviceGetName", handle), _string(call, "nvmlDeviceGetUUID", handle)
        found.append(Gpu(name, capability, attributes.multiprocessors, _memory(call, handle), uuid))
    return tuple(found)


def _memory(call: Callable[..., bool], handle: ctypes.c_void_p) -> int:
    memory = _Memory()
    return int(memory.total) if call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory)) else 0


def _string(call: Callable[..., bool], function: str, handle: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(96)
    return _text(buffer) if call(function, handle, buffer, 96) else ""


def _text(buffer: ctypes.Array[ctypes.c_char]) -> str:
    return buffer.value.decode("ascii", "replace")
