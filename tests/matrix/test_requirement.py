"""The grammar of requirements, and everything that is refused in it."""

from __future__ import annotations

import pytest

from amp_matrix.requirement import Requirement, RequirementError, parse, parse_all


def refused(text: str, **options: object) -> tuple[str, ...]:
    with pytest.raises(RequirementError) as caught:
        parse(text, **options)  # type: ignore[arg-type]
    return caught.value.faults


@pytest.mark.parametrize(
    ("text", "device", "precision", "task"),
    [
        ("cpu: bf16-mixed: train", "cpu", "bf16-mixed", "train"),
        ("  cuda : fp16-mixed :infer ", "cuda", "fp16-mixed", "infer"),
        ("cuda:0: fp16-mixed: train", "cuda:0", "fp16-mixed", "train"),
        ("cuda:bf16-mixed+te-mxfp8:train", "cuda", "bf16-mixed+te-mxfp8", "train"),
    ],
)
def test_a_precision_for_a_task(text: str, device: str, precision: str, task: str) -> None:
    assert parse(text) == Requirement(text.strip(), device=device, precision=precision, task=task)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "device", "cell", "floor"),
    [
        ("op.softmax@bf16-mixed", "", "op.softmax@bf16-mixed", 0.0),
        ("cuda:0/op.softmax[large]@fp16-true", "cuda:0", "op.softmax[large]@fp16-true", 0.0),
        ("cuda/op.softmax@fp16-true", "cuda", "op.softmax@fp16-true", 0.0),
        ("speed.matmul@bf16-mixed >= 1.5", "", "speed.matmul@bf16-mixed", 1.5),
        ("xpu:1/speed.matmul@bf16-mixed>=2", "xpu:1", "speed.matmul@bf16-mixed", 2.0),
    ],
)
def test_a_cell_and_a_gain(text: str, device: str, cell: str, floor: float) -> None:
    assert parse(text) == Requirement(text, device=device, cell=cell, floor=floor)


@pytest.mark.parametrize(
    ("marker", "versions", "holds"),
    [
        ("torch >= '2.6'", {"torch": "2.13.0+cpu"}, True),
        ("torch >= '2.6'", {"torch": "2.5.1"}, False),
        ('torch == "2.13.0"', {"torch": "2.13.0+cu126"}, True),
        ("torch ~= '2.6'", {"torch": "3.0"}, False),
        ("torch >= '2.13'", {"torch": "2.14.0.dev20260101"}, True),
        ("torch>='2.6'", {}, False),
        ("torch >= '2.6'", {"torch": "git-built"}, False),
        ("macos >= '14.0'", {"torch": "2.6"}, False),
        ("macos >= '14.0'", {"macos": "14.6.1"}, True),
        ("torch >= '2.6' and python < '3.13'", {"torch": "2.6", "python": "3.13.0"}, False),
        ("torch >= '2.6' and python < '3.13' or macos >= '15'", {"torch": "2.6", "macos": "15.1"}, True),
    ],
)
def test_markers(marker: str, versions: dict[str, str], holds: bool) -> None:
    assert parse(f"cpu: fp32: train; {marker}").marker.holds(versions) is holds


def test_without_a_marker_it_always_applies() -> None:
    assert parse("cpu: fp32: train").marker.holds({})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "write DEVICE: PRECISION: TASK"),
        ("bf16-mixed", "write DEVICE: PRECISION: TASK"),
        ("cpu: bf16-mixed", "write DEVICE: PRECISION: TASK"),
        ("cpuu: bf16-mixed: train", "unknown device 'cpuu'; did you mean 'cpu'?"),
        ("mps:0: bf16-mixed: train", "mps has no index; write 'mps'"),
        ("cpu: bf16_mixed: train", "unknown compute precision 'bf16_mixed'; did you mean 'bf16-mixed'?"),
        ("cpu: bf16-mixed: trian", "unknown task 'trian'; did you mean 'train'?"),
        ("op.softmax@bf61-mixed", "did you mean 'bf16-mixed'?"),
        ("op.softmax[base]@fp32", "leave [base] out"),
        ("cdua/op.softmax@fp32", "unknown device 'cdua'; did you mean 'cuda'?"),
        ("op.softmax@fp32 >= 1.5", "op.softmax measures no speed"),
        ("speed.matmul@fp32 > 1.5", "unknown comparison '>'; write >="),
        ("speed.matmul@fp32 >= fast", "'fast' is no gain"),
        ("speed.matmul@fp32 >= nan", "'nan' is no gain"),
        ("speed.matmul@fp32 >= -1", "'-1' is no gain"),
        ("cpu: fp32: train; tourch >= '2.6'", "unknown name 'tourch'; did you mean 'torch'?"),
        ("cpu: fp32: train; torch >= 2.6", "is no condition; write NAME >= 'VERSION'"),
        ("cpu: fp32: train; torch >= 'new'", ">= 'new' is no comparison with a version"),
        ("cpu: fp32: train; torch => '2.6'", "=> '2.6' is no comparison with a version"),
        ("cpu: fp32: train;", "'' is no condition"),
        ("cpu: fp32: train; torch >= '2' and", "is no condition"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    (fault,) = refused(text)
    assert fault.startswith(repr(text.strip()))
    assert message in fault


def test_a_probe_must_be_known_where_the_probes_are() -> None:
    (fault,) = refused("op.sofmax@fp32", probes=("op.softmax", "op.gelu"))
    assert "unknown probe 'op.sofmax'; did you mean 'op.softmax'?" in fault
    (fault,) = refused("zz.q@fp32", probes=("op.softmax", "op.gelu"))
    assert fault.endswith("amp-probe run --list shows them")
    assert parse("op.softmax@fp32", probes=("op.softmax",)).cell == "op.softmax@fp32"


def test_all_faults_of_a_list_are_said_at_once() -> None:
    with pytest.raises(RequirementError) as caught:
        parse_all(["cpuu: bf17-mixed: trian; tourch >= 'x'", "cpu: fp32: train", "op.x"])
    assert len(caught.value.faults) == 6
    assert str(caught.value) == "\n".join(caught.value.faults)


@pytest.mark.parametrize(
    ("device", "spoken_of"),
    [("", {"cpu", "cuda:0", "cuda:1"}), ("cuda", {"cuda:0", "cuda:1"}), ("cuda:1", {"cuda:1"}), ("mps", set())],
)
def test_which_devices_are_meant(device: str, spoken_of: set[str]) -> None:
    requirement = Requirement("x", device=device)
    assert {d for d in ("cpu", "cuda:0", "cuda:1") if requirement.speaks_of(d)} == spoken_of
