from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import torch

from amp_matrix.precision import COMPUTES, Precision
from amp_matrix.survey import Status, TensorError
from amp_probe import precisions
from amp_probe.case import Arg, Op
from amp_probe.harness.recorder import Fault
from amp_probe.request import RunCell, Setting, Spec
from amp_probe.session import Session
from amp_probe.suite import Probe

CPU = torch.device("cpu")


@pytest.mark.parametrize(("compute", "dtype"), [("bf16-mixed", torch.bfloat16), ("fp16-mixed", torch.float16)])
def test_mixed_turns_autocast_on_with_its_dtype_and_off_again(compute: str, dtype: torch.dtype) -> None:
    with precisions.enter(Precision(compute), CPU):
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == dtype
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("compute", ["fp32", "bf16-true", "fp16-true"])
def test_the_others_leave_autocast_alone(compute: str) -> None:
    with precisions.enter(Precision(compute), CPU):
        assert not torch.is_autocast_enabled("cpu")


def test_an_autocast_that_turns_itself_off_is_inert() -> None:
    if torch.cuda.is_available():
        pytest.skip("autocast stays on where CUDA is")
    region = precisions.enter(Precision("bf16-mixed"), torch.device("cuda"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Fault) as caught:
            region.__enter__()
    assert caught.value.status is Status.INERT
    assert "CUDA is not available" in caught.value.reason
    assert not torch.is_autocast_enabled("cuda")


def test_an_autocast_that_takes_another_dtype_is_inert(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.autocast

    @contextmanager
    def bfloat16_only(device: str, dtype: torch.dtype) -> Iterator[None]:
        with real(device, dtype=torch.bfloat16):
            yield

    monkeypatch.setattr(torch, "autocast", bfloat16_only)
    with pytest.raises(Fault) as caught, precisions.enter(Precision("fp16-mixed"), CPU):
        pass
    assert caught.value.code == "autocast_dtype"


def test_tf32_is_refused_off_cuda() -> None:
    assert "cpu" in precisions.refusal(Precision("tf32"), CPU)
    assert all(precisions.refusal(Precision(c), CPU) == "" for c in COMPUTES if c != "tf32")


def test_recipes_and_unknown_devices_are_refused() -> None:
    assert "te-mxfp8" in precisions.refusal(Precision("bf16-mixed", "te-mxfp8"), torch.device("cuda:0"))
    assert "meta" in precisions.refusal(Precision("bf16-mixed"), torch.device("meta"))


def test_tf32_flags_are_set_and_put_back() -> None:
    def flags() -> tuple[bool, bool, str]:
        matmul = torch.backends.cuda.matmul.allow_tf32
        return matmul, torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()

    before = flags()
    with precisions.enter(Precision("tf32"), torch.device("cuda:0")):
        assert flags() == (True, True, "high")
    assert flags() == before


def test_dtypes_of_a_precision() -> None:
    assert precisions.storage(Precision("bf16-mixed")) is torch.float32
    assert precisions.low(Precision("bf16-mixed")) is torch.bfloat16
    assert precisions.storage(Precision("fp16-true")) is torch.float16
    assert precisions.low(Precision("tf32")) is torch.float32


@pytest.mark.parametrize(
    ("compute", "dtype", "wide", "fine"),
    [
        ("bf16-mixed", torch.float32, False, True),
        ("bf16-mixed", torch.float16, False, False),
        ("bf16-true", torch.float32, False, False),
        ("bf16-true", torch.float32, True, True),
        ("fp16-true", torch.bfloat16, True, False),
        ("fp32", torch.bfloat16, False, False),
        ("bf16-true", torch.int64, False, True),
    ],
)
def test_in_effect(compute: str, dtype: torch.dtype, wide: bool, fine: bool) -> None:
    wrong = precisions.in_effect(Precision(compute), [torch.ones(2, dtype=dtype)], wide)
    assert (wrong == "") is fine
    assert fine or precisions.name(dtype) in wrong


def test_tf32_is_held_for_a_whole_cell_and_let_go() -> None:
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    with precisions.hold(Precision("tf32")):
        assert torch.backends.cuda.matmul.allow_tf32
        with precisions.enter(Precision("tf32"), torch.device("cpu")):
            pass
        assert torch.backends.cuda.matmul.allow_tf32, "a backward outside the forward's region must be TF32 too"
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


def test_a_cells_backward_runs_inside_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    class Spy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            seen.append(torch.backends.cuda.matmul.allow_tf32)
            return grad

    case = Op(lambda x: Spy.apply(x), {"x": Arg(torch.ones(4, 4).double(), grad=True)})
    monkeypatch.setattr(precisions, "refusal", lambda precision, device: "")
    session = Session(Setting("cpu"))
    session._probes[("op.spy", "base")] = Probe("op.spy", lambda draw: case, precisions=("tf32",))
    session.run(msgspec.msgpack.encode(RunCell(Spec("op.spy", "base", "tf32", "stress", 1, 9.0))), lambda line: None)
    assert True in seen
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize(
    ("capability", "hip", "refused"), [((7, 5), None, True), ((8, 0), None, False), ((9, 0), "6.4", True)]
)
def test_tf32_is_refused_where_the_device_has_none(
    capability: tuple[int, int], hip: str | None, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    assert bool(precisions.refusal(Precision("tf32"), torch.device("cuda:0"))) is refused


def test_tf32_that_the_environment_keeps_away_is_inert(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    with pytest.raises(Fault) as caught, precisions.enter(Precision("tf32"), torch.device("cuda:0")):
        pass
    assert (caught.value.status, caught.value.code) == (Status.INERT, "tf32_override")
    assert not torch.backends.cuda.matmul.allow_tf32
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    with precisions.enter(Precision("tf32"), torch.device("cuda:0")):
        pass


@pytest.mark.parametrize(("n", "shows"), [(0.3, True), (0.009, True), (0.007, False), (1e-4, False)])
def test_tf32_shows_where_the_error_is_beyond_what_float32_loses(n: float, shows: bool) -> None:
    errors = [TensorError("grad bias", "float32", 1e-5, 1.5, 0.0, 2.0), TensorError("x", "float32", n, 1.5, 0.0, 2.0)]
    assert (precisions.tf32_absent(errors) == "") is shows
