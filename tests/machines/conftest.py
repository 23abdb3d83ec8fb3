"""Machines that nobody here has: constructed documents, and an NVML that answers from them."""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from amp_matrix.survey import Environment

FIXTURES = Path(__file__).with_name("fixtures")


@dataclass(frozen=True)
class Machine:
    """One constructed machine: what its system would say, and the environment that must come of it."""

    name: str
    note: str
    device: str
    facts: dict[str, Any]
    environment: Environment


def load(path: Path) -> Machine:
    return msgspec.convert({"name": path.stem, **json.loads(path.read_text())}, type=Machine)


MACHINES = tuple(load(p) for p in sorted(FIXTURES.glob("*.json")))


@pytest.fixture(params=MACHINES, ids=lambda m: m.name)
def machine(request: pytest.FixtureRequest) -> Machine:
    """Each machine in turn."""
    found: Machine = request.param
    return found


@pytest.fixture
def machines() -> dict[str, Machine]:
    """All machines, by the word after `constructed-` in their file's name: `a100`, `apple`, `h200`."""
    return {m.name.removeprefix("constructed-").rpartition("-driver")[0] or "m2": m for m in MACHINES}


@dataclass
class Nvml:
    """NVML's C functions over a machine's facts: what they return and where they write it, as NVIDIA's reference says.

    `missing`: functions that this driver does not have.
    """

    facts: dict[str, Any]
    missing: frozenset[str] = frozenset()
    handles: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, function: str, *arguments: Any) -> bool:
        if function in self.missing:
            return False
        answer = getattr(self, f"_{function}", None)
        return True if answer is None else bool(answer(*arguments) is not False)

    def _open(self, gpu: dict[str, Any], out: Any) -> None:
        self.handles.append(gpu)
        _set(out, ctypes.c_void_p, len(self.handles))

    def _gpu(self, handle: ctypes.c_void_p) -> dict[str, Any]:
        assert handle.value is not None
        return self.handles[handle.value - 1]

    def _nvmlDeviceGetCount_v2(self, out: Any) -> None:
        _set(out, ctypes.c_uint, len(self.facts["gpus"]))

    def _nvmlSystemGetDriverVersion(self, buffer: Any, size: int) -> None:
        buffer.value = self.facts["driver"].encode()[: size - 1]

    def _nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, out: Any) -> None:
        self._open(self.facts["gpus"][index.value], out)

    def _nvmlDeviceGetCudaComputeCapability(self, handle: ctypes.c_void_p, major: Any, minor: Any) -> None:
        first, _, second = self._gpu(handle)["capability"].partition(".")
        _set(major, ctypes.c_int, int(first))
        _set(minor, ctypes.c_int, int(second))

    def _nvmlDeviceGetNumGpuCores(self, handle: ctypes.c_void_p, out: Any) -> None:
        _set(out, ctypes.c_uint, self._gpu(handle)["cores"])

    def _nvmlDeviceGetMigMode(self, handle: ctypes.c_void_p, current: Any, pending: Any) -> None:
        _set(current, ctypes.c_uint, int(self._gpu(handle)["mig"]))

    def _nvmlDeviceGetMaxMigDeviceCount(self, handle: ctypes.c_void_p, out: Any) -> None:
        _set(out, ctypes.c_uint, 7)

    def _nvmlDeviceGetMigDeviceHandleByIndex(
        self, handle: ctypes.c_void_p, index: ctypes.c_uint, out: Any
    ) -> bool | None:
        slices = self._gpu(handle)["slices"]
        if index.value >= len(slices):
            return False
        self._open(slices[index.value], out)
        return None

    def _nvmlDeviceGetAttributes_v2(self, handle: ctypes.c_void_p, out: Any) -> None:
        ctypes.cast(out, ctypes.POINTER(ctypes.c_uint))[0] = self._gpu(handle)["multiprocessors"]

    def _nvmlDeviceGetMemoryInfo(self, handle: ctypes.c_void_p, out: Any) -> None:
        ctypes.cast(out, ctypes.POINTER(ctypes.c_ulonglong))[0] = self._gpu(handle)["memory"]

    def _nvmlDeviceGetName(self, handle: ctypes.c_void_p, buffer: Any, size: int) -> None:
        buffer.value = self._gpu(handle)["name"].encode()[: size - 1]

    def _nvmlDeviceGetUUID(self, handle: ctypes.c_void_p, buffer: Any, size: int) -> None:
        buffer.value = self._gpu(handle)["uuid"].encode()[: size - 1]


def _set(out: Any, kind: Any, value: int) -> None:
    ctypes.cast(out, ctypes.POINTER(kind))[0] = kind(value) if kind is ctypes.c_void_p else value


@pytest.fixture
def nvml_of() -> type[Nvml]:
    """Makes an NVML from a machine's facts."""
    return Nvml
