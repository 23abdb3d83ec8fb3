"""Which devices are here, why the others are not, and whether one still computes."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from amp_probe import devices
from amp_probe.devices import canary as canaries
from amp_probe.devices import cpu, cuda, mps, xpu
from amp_probe.request import Absent

CPU = torch.device("cpu")
NVIDIA = cuda.Facts(cuda="12.8", hip="", available=True, driver="570.86.15", visible=None)
MAC = mps.Facts(system="Darwin", macos="14.5", built=True, available=True)
NOT_HERE = not torch.version.cuda and not torch.version.hip


class Two:
    """A backend with two devices, as a machine with two GPUs would have."""

    forks = False
    synchronize = reset_peak = peak_bytes = canary = staticmethod(lambda device: 0)

    def absence(self) -> str:
        return ""

    def names(self) -> tuple[str, ...]:
        return ("cuda:0", "cuda:1")


@pytest.mark.parametrize("backend", devices.BACKENDS.values(), ids=devices.KINDS)
def test_every_kind_has_all_that_a_backend_has(backend: devices.Backend) -> None:
    for name in ("absence", "names", "synchronize", "reset_peak", "peak_bytes", "canary"):
        assert callable(getattr(backend, name))
    assert isinstance(backend.forks, bool)
    assert bool(backend.absence()) == (backend.names() == ())


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (NVIDIA, ""),
        (NVIDIA._replace(cuda=""), "torch built without CUDA"),
        (NVIDIA._replace(available=False, driver=""), "no NVIDIA driver"),
        (NVIDIA._replace(available=False, visible=""), "every CUDA device is hidden by CUDA_VISIBLE_DEVICES"),
        (NVIDIA._replace(available=False, visible=" -1"), "every CUDA device is hidden by CUDA_VISIBLE_DEVICES"),
        (
            NVIDIA._replace(available=False),
            "the NVIDIA driver 570.86.15 found no device that torch for CUDA 12.8 can use",
        ),
        (NVIDIA._replace(cuda="", hip="6.2.4", driver=""), ""),
        (NVIDIA._replace(cuda="", hip="6.2.4", driver="", available=False), "ROCm 6.2.4 found no device"),
    ],
)
def test_why_there_is_no_cuda_device(facts: cuda.Facts, expected: str) -> None:
    assert cuda.reason(facts) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (MAC, ""),
        (mps.Facts("Linux", "", built=False, available=False), "not a Mac: Linux has no MPS"),
        (MAC._replace(built=False, available=False), "torch built without MPS"),
        (MAC._replace(macos="13.6", available=False), "macOS 13.6 is older than 14"),
        (MAC._replace(macos="13.6"), ""),
        (MAC._replace(available=False), "Metal found no device"),
        (MAC._replace(macos="", available=False), "Metal found no device"),
    ],
)
def test_why_there_is_no_mps(facts: mps.Facts, expected: str) -> None:
    """torch 2.6 still runs on macOS 13: an old system is a reason only where torch refuses it."""
    assert mps.reason(facts) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (xpu.Facts(built=True, devices=1), ""),
        (xpu.Facts(built=False, devices=0), "torch built without XPU"),
        (xpu.Facts(built=True, devices=0), "the Intel GPU driver is missing or found no device"),
    ],
)
def test_why_there_is_no_intel_gpu(facts: xpu.Facts, expected: str) -> None:
    assert xpu.reason(facts) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="asks what Linux says of MPS")
def test_linux_says_why_it_has_no_mps() -> None:
    found = devices.resolve(("mps",))
    assert found.present == ()
    assert found.absent == (Absent("mps", "not a Mac: Linux has no MPS"),)


def test_no_name_means_all_that_are_here_and_nothing_absent() -> None:
    found = devices.resolve(())
    assert "cpu" in found.present
    assert found.absent == ()


@pytest.mark.skipif(not NOT_HERE, reason="this torch may have CUDA devices")
def test_a_device_that_is_absent_stops_no_other_and_order_is_kept() -> None:
    found = devices.resolve(("cuda:1", "cpu", "cuda", "cpu:0", "cuda:1"))
    assert found.present == ("cpu",)
    assert found.absent == tuple(Absent(d, "torch built without CUDA") for d in ("cuda:1", "cuda"))


def test_a_kind_means_each_of_its_devices_and_a_number_one() -> None:
    two = Two()
    assert devices.find("cuda", None, two) == (("cuda:0", "cuda:1"), "")
    assert devices.find("cuda", 1, two) == (("cuda:1",), "")
    assert devices.find("cuda", 7, two) == ((), "this machine has 2 CUDA devices")
    assert devices.find("cpu", 1, cpu) == ((), "this machine has 1 CPU device")


def test_one_device_named_twice_is_probed_once_in_the_order_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(devices.BACKENDS, "cuda", Two())
    assert devices.resolve(("cuda:1", "cpu", "cuda", "cuda:7")).present == ("cuda:1", "cpu", "cuda:0")
    assert devices.resolve(("cuda:7",)).absent == (Absent("cuda:7", "this machine has 2 CUDA devices"),)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gpu", "say which kind: cuda, mps or xpu"),
        ("gpu:0", "say which kind: cuda, mps or xpu"),
        ("rocm", "torch's name is 'cuda'"),
        ("cdua", "did you mean 'cuda'"),
        ("CUDA", "write it like cpu"),
        ("cuda:", "or cuda:0"),
        ("cuda:x", "or cuda:0"),
        ("cuda:-1", "or cuda:0"),
        ("", "known: cpu, cuda, mps, xpu"),
    ],
)
def test_a_name_that_means_nothing_is_refused_with_a_hint(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        devices.resolve(("cpu", name))


def test_the_canary_is_content_with_a_cpu_that_computes() -> None:
    assert cpu.canary(CPU) == ""


class Broken(TorchDispatchMode):
    """A device on which one operator gives wrong values."""

    def __init__(self, operator: str, wrongly: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._operator, self._wrongly = operator, wrongly

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return self._wrongly(out) if func.overloadpacket.__name__ == self._operator else out


@pytest.mark.parametrize("wrongly", [torch.zeros_like, lambda out: out + 1, lambda out: out * math.nan])
@pytest.mark.parametrize(
    ("operator", "says"),
    [
        ("mm", "a matrix product of small integers came out wrong"),
        ("mul", "an elementwise product of small integers came out wrong"),
        ("sum", "a sum of small integers came out wrong"),
    ],
)
def test_the_canary_sees_zeros_small_errors_and_nan_in_each_operation(
    operator: str, says: str, wrongly: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    with Broken(operator, wrongly):
        assert cpu.canary(CPU) == says
    assert cpu.canary(CPU) == ""


def test_the_canary_of_a_device_that_raises_is_a_sentence_without_paths() -> None:
    said = canaries.canary(SimpleNamespace())  # type: ignore[arg-type]
    assert said.startswith("the device raised TypeError: ")
    assert "/" not in said


def test_the_canarys_numbers_are_exact_in_float32_and_never_zero() -> None:
    left, right = canaries._operands()
    product = canaries._product(left, right)
    flat = [v for rows in (left, right, product, canaries._elementwise(left, right)) for row in rows for v in row]
    assert all(v == int(v) and 0 < v < 2**24 for v in flat)
    assert product != canaries._product(right, left)
    assert len({tuple(row) for row in left}) == len(left)
    assert len({tuple(row) for row in right}) == len(right)


def test_asking_for_devices_initialises_no_cuda() -> None:
    code = """
import torch
from amp_probe import devices
devices.resolve(())
assert not torch.cuda.is_initialized()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux resets a process's peak")
def test_the_cpus_peak_rises_with_an_allocation_and_falls_with_a_reset() -> None:
    """In a child: the peak is the whole process's."""
    code = """
import torch
from amp_probe.devices import cpu
device = torch.device("cpu")
cpu.reset_peak(device)
low = cpu.peak_bytes(device)
torch.ones(32 * 2**20)  # 128 MiB
high = cpu.peak_bytes(device)
cpu.reset_peak(device)
print(high - low, cpu.peak_bytes(device) - low)
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rise, left = map(int, child.stdout.split())
    assert rise > 120 * 2**20
    assert left < 20 * 2**20
