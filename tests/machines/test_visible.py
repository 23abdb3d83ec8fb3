"""Which GPU is cuda:0 before CUDA is asked: the rules of CUDA_VISIBLE_DEVICES, and where they leave doubt."""

from __future__ import annotations

from typing import Any

import pytest

from amp_matrix.environment import CaptureError, nvml
from amp_matrix.environment.nvml import Gpu, NvmlError, multiprocessors
from amp_matrix.environment.visible import pick

A, B, C = (Gpu("NVIDIA H200", "9.0", 132, uuid=f"GPU-{c}{c}{c}0-0000") for c in "abc")
T4 = Gpu("Tesla T4", "7.5", 40, uuid="GPU-4440-0000")
SMALL = Gpu("NVIDIA H200 MIG 1g.18gb", "9.0", 16, uuid="MIG-1110-0000")
SMALL2 = SMALL._replace(uuid="MIG-2220-0000")
BIG = Gpu("NVIDIA H200 MIG 3g.71gb", "9.0", 60, uuid="MIG-3330-0000")
CUT = A._replace(mig=True, slices=(SMALL, BIG))
EVEN = A._replace(mig=True, slices=(SMALL, SMALL2))


@pytest.mark.parametrize(
    ("visible", "index", "expected"),
    [
        (None, 0, A),
        (None, 2, C),
        ("2,0", 0, C),
        ("2,0", 1, A),
        (" 1 , 2 ", 1, C),
        ("1,-1,2", 0, B),
        ("GPU-bbb", 0, B),
        ("GPU-ccc,GPU-aaa", 1, A),
        ("GPU-ccc,nonsense,GPU-aaa", 0, C),
    ],
)
def test_a_list_of_numbers_or_uuids_renumbers(visible: str | None, index: int, expected: Gpu) -> None:
    assert pick(index, (A, B, C), visible) == expected


@pytest.mark.parametrize(
    ("visible", "index", "count"),
    [
        (None, 3, "3 CUDA devices"),
        ("", 0, "0 CUDA devices"),
        ("-1", 0, "0 CUDA devices"),
        ("9,0", 0, "0 CUDA devices"),
        ("0,0", 0, "0 CUDA devices"),
        ("1,-1,2", 1, "1 CUDA device"),
        ("GPU-", 0, "0 CUDA devices"),
        ("GPU-ccc,nonsense,GPU-aaa", 1, "1 CUDA device"),
    ],
)
def test_what_the_list_hides_is_not_there(visible: str | None, index: int, count: str) -> None:
    with pytest.raises(CaptureError, match=rf"^this process sees {count}$"):
        pick(index, (A, B, C), visible)


def test_unlike_gpus_are_never_guessed_at_by_number() -> None:
    for visible in (None, "0", "1"):
        with pytest.raises(CaptureError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
            pick(0, (T4, A), visible)
    assert pick(0, (T4, A), None, "PCI_BUS_ID") == T4
    assert pick(1, (T4, A), None, "PCI_BUS_ID") == A
    assert pick(0, (T4, A), "GPU-aaa") == A


def test_a_gpu_cut_into_slices_is_used_by_one_slice() -> None:
    assert pick(0, (CUT,), "MIG-333") == BIG
    assert pick(0, (CUT, B), "MIG-111") == SMALL
    assert pick(0, (EVEN,), None) == SMALL
    with pytest.raises(CaptureError, match="sees 1 CUDA device"):
        pick(1, (EVEN,), None)


def test_which_slice_is_never_guessed_at() -> None:
    with pytest.raises(CaptureError, match="the MIG slices differ"):
        pick(0, (CUT,), "0")
    with pytest.raises(CaptureError, match="not certain which"):
        pick(0, (CUT,), "MIG-111,MIG-333")
    with pytest.raises(CaptureError, match="GPUs differ"):
        pick(0, (B, CUT), None)


def test_a_driver_that_answers_little_is_an_error_with_a_reason(machines: dict[str, Any], nvml_of: Any) -> None:
    facts = machines["h200"].facts
    for function, reason in (
        ("nvmlInit_v2", "does not answer"),
        ("nvmlDeviceGetCount_v2", "does not count"),
        ("nvmlDeviceGetHandleByIndex_v2", "does not open its device 0"),
        ("nvmlDeviceGetCudaComputeCapability", "compute capability"),
    ):
        with pytest.raises(NvmlError, match=reason):
            nvml.read(nvml_of(facts, missing=frozenset((function,))))


def test_an_old_driver_that_counts_no_cores_leaves_the_size_unknown(machines: dict[str, Any], nvml_of: Any) -> None:
    missing = frozenset(("nvmlDeviceGetNumGpuCores", "nvmlDeviceGetMigMode"))
    (gpu,) = nvml.read(nvml_of(machines["h200"].facts, missing=missing)).gpus
    assert (gpu.name, gpu.multiprocessors, gpu.mig) == ("NVIDIA H200", 0, False)


@pytest.mark.parametrize(
    ("capability", "cores", "expected"),
    [
        ("7.0", 5120, 80),
        ("7.5", 2560, 40),
        ("8.0", 6912, 108),
        ("8.9", 16384, 128),
        ("9.0", 16896, 132),
        ("13.0", 1, 0),
    ],
)
def test_multiprocessors_are_counted_by_published_sizes(capability: str, cores: int, expected: int) -> None:
    """V100, T4, A100, RTX 4090 and H200 by NVIDIA's data sheets; a generation that nobody has seen stays unknown."""
    assert multiprocessors(capability, cores) == expected


def test_without_a_driver_that_is_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_LIBRARY", "libno-such-driver.so.0")
    nvml._driver.cache_clear()
    with pytest.raises(NvmlError, match=r"^no NVIDIA driver$"):
        nvml.driver()
    assert nvml.driver_version() == ""
