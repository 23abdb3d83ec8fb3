"""Machines that are not here: what would identify them, and what their evidence would count for."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import msgspec
import pytest

from amp_matrix.environment import SCOPED, applies, differences, identity_key, mps, nvml
from amp_matrix.environment.cuda import Build, identify
from amp_matrix.environment.sysctl import decode
from amp_matrix.environment.visible import pick
from amp_matrix.precision import Precision


def test_every_document_says_that_it_was_not_measured(machine: Any) -> None:
    assert machine.name.startswith("constructed-")
    assert "Not measured" in machine.note


def test_an_nvidia_gpu_is_identified_by_what_nvml_says(machines: dict[str, Any], nvml_of: Any) -> None:
    nvidia = [m for m in machines.values() if "gpus" in m.facts]
    assert len(nvidia) == 4
    for machine in nvidia:
        driver = nvml.read(nvml_of(machine.facts))
        gpu = pick(0, driver.gpus, machine.facts["visible"])
        expected = machine.environment.identity
        found = identify(gpu, driver.version, Build(expected["cuda"], expected["hip"], expected["cudnn"]))
        assert found == {f: expected[f] for f in found}
        assert str(gpu.memory) == machine.environment.recorded["memory"]


def test_a_mac_is_identified_by_what_the_system_says(machines: dict[str, Any]) -> None:
    mac = machines["m2"]
    found = mps.identify(mac.facts["model"], mac.facts["macos"])
    assert found == {f: mac.environment.identity[f] for f in found}


def test_no_two_machines_share_evidence(machines: dict[str, Any]) -> None:
    keys = {name: identity_key(m.environment) for name, m in machines.items()}
    assert len(keys) == 5
    for one, other in combinations(keys, 2):
        assert keys[one] != keys[other]


def test_a_slice_is_not_the_whole_gpu(machines: dict[str, Any]) -> None:
    whole, part = machines["a100"].environment.identity, machines["a100-mig-1g.5gb"].environment.identity
    assert differences(whole, part) == (
        "the device's name NVIDIA A100-SXM4-40GB then, NVIDIA A100-SXM4-40GB MIG 1g.5gb now",
        "the number of multiprocessors 108 then, 14 now",
    )


def test_a_patch_of_macos_or_the_driver_keeps_the_evidence_and_a_release_ends_it(machines: dict[str, Any]) -> None:
    mac = machines["m2"].environment.identity
    assert differences(mac, mac | mps.identify("Apple M2", "14.5.1")) == ()
    assert differences(mac, mac | mps.identify("Apple M2", "14.6")) == ("macOS 14.5 then, 14.6 now",)
    gpu, build = nvml.Gpu("NVIDIA H200", "9.0", 132), Build("13.0", "", "91900")
    h200 = identify(gpu, "580.65.06", build)
    assert differences(h200, identify(gpu, "580.95.05", build)) == ()
    assert differences(h200, identify(gpu, "590.10.01", build)) == ("the driver 580 then, 590 now",)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("Apple M2", "Apple M2"),
        ("Apple M2 Pro", "Apple M2"),
        ("Apple M2 Ultra", "Apple M2"),
        ("Apple M10 Max", "Apple M10"),
        ("Apple M2 (Virtual)", "Apple M2 (Virtual)"),
        ("Apple processor", "Apple processor"),
        ("Intel(R) Core(TM) i9-9980HK CPU @ 2.40GHz", "Intel(R) Core(TM) i9-9980HK CPU @ 2.40GHz"),
    ],
)
def test_a_chips_sizes_share_evidence_and_virtual_machines_do_not(model: str, expected: str) -> None:
    assert mps.chip(model) == expected


def test_a_setting_ends_evidence_only_for_the_precisions_that_it_can_change(machines: dict[str, Any]) -> None:
    then = machines["h200"].environment
    settings = {"transformer_engine": "2.21.0", "NVIDIA_TF32_OVERRIDE": "0"}
    now = msgspec.structs.replace(then, scoped=then.scoped | settings)
    assert identity_key(then) == identity_key(now)
    changed = {f for f in SCOPED if then.scoped.get(f) != now.scoped.get(f)}
    touched = {
        str(p): sorted(f for f in changed if applies(f, p))
        for p in (Precision("fp32"), Precision("bf16-mixed"), Precision("bf16-mixed", "te-mxfp8"))
    }
    assert touched == {
        "fp32": ["NVIDIA_TF32_OVERRIDE"],
        "bf16-mixed": [],
        "bf16-mixed+te-mxfp8": ["transformer_engine"],
    }


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"Apple M2\0", "Apple M2"),
        (b"14.5\0", "14.5"),
        (b"\x01\0\0\0", "1"),
        (b"\0\0\0\0", "0"),
        (b"\x0a\0\0\0\0\0\0\0", "10"),
    ],
)
def test_a_sysctl_is_a_string_or_a_number(raw: bytes, expected: str) -> None:
    assert decode(raw) == expected
