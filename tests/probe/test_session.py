"""A session answers requests: seeds, state, and probes that fail before they have a case."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import torch

from amp_matrix import codec
from amp_matrix.survey import Outcome
from amp_probe.announce import read_announced
from amp_probe.request import ListCells, Request, RunCell, Setting, Spec
from amp_probe.session import Session, torch_state


@pytest.fixture
def session() -> Iterator[Session]:
    threads = torch.get_num_threads()
    yield Session(Setting("cpu"))
    torch.set_num_threads(threads)


def spec(probe: str, precision: str = "fp32", variant: str = "base") -> Spec:
    return Spec(probe, variant, precision, "stress", 1, 10.0)


def ask(session: Session, request: Request) -> tuple[bytes, list[bytes]]:
    lines: list[bytes] = []
    return session.run(msgspec.msgpack.encode(request), lines.append).body, lines


def outcome(session: Session, cell: Spec) -> Outcome:
    return codec.decode_outcome(ask(session, RunCell(cell))[0])


def test_stages_are_announced_as_they_end(session: Session) -> None:
    body, lines = ask(session, RunCell(spec("op.softmax", "bf16-mixed")))
    finished, running = read_announced(lines)
    assert finished == codec.decode_outcome(body).stages
    assert running == ""
    assert [s.name for s in finished] == ["build", "infer", "forward", "backward"]


def test_the_same_cell_twice_is_the_same_to_the_bit(session: Session) -> None:
    first, again = (outcome(session, spec("op.softmax", "bf16-mixed")) for _ in range(2))
    assert [s.errors for s in first.stages] == [s.errors for s in again.stages]


def test_an_unknown_probe_is_not_run(session: Session) -> None:
    assert outcome(session, spec("op.nothing")).code == "unknown_probe"


def test_tf32_off_cuda_is_unsupported(session: Session) -> None:
    found = outcome(session, spec("op.matmul", "tf32"))
    assert (found.status, found.code) == ("unsupported", "declared")
    assert "TF32" in found.reason


def test_the_plan_is_given_as_specs(session: Session) -> None:
    body, _ = ask(session, ListCells("quick", ("op.softmax",), ("bf16-mixed",)))
    (found,) = msgspec.msgpack.decode(body, type=tuple[Spec, ...])
    assert (found.id, found.tier) == ("op.softmax@bf16-mixed", "essential")


MATMUL, CUDA = torch.backends.cuda.matmul, torch.backends.cuda
Change = tuple[str, Callable[[Any], object], object, object]


def attribute(owner: Any, name: str) -> Callable[[Any], object]:
    return lambda value: setattr(owner, name, value)


def warn_only(on: bool) -> None:
    torch.use_deterministic_algorithms(on, warn_only=on)


SETTINGS: dict[str, Change] = {  # the field of the fingerprint, what sets it, another value, and torch's own
    "default_dtype": ("default_dtype", torch.set_default_dtype, torch.float64, torch.float32),
    "default_device": ("default_device", torch.set_default_device, "meta", None),
    "threads": ("threads", torch.set_num_threads, 3, 1),
    "grad": ("grad_enabled", torch.set_grad_enabled, False, True),
    "autocast": ("autocast", lambda on: torch.set_autocast_enabled("cpu", on), True, False),
    "autocast of cuda": ("autocast", lambda on: torch.set_autocast_enabled("cuda", on), True, False),
    "autocast_dtype": (
        "autocast_dtype",
        lambda dtype: torch.set_autocast_dtype("cpu", dtype),
        torch.float16,
        torch.bfloat16,
    ),
    "autocast_cache": ("autocast_cache", torch.set_autocast_cache_enabled, False, True),
    "deterministic": ("deterministic", torch.use_deterministic_algorithms, True, False),
    "warn_only": ("warn_only", warn_only, True, False),
    "fill": ("fill_uninitialized", attribute(torch.utils.deterministic, "fill_uninitialized_memory"), False, True),
    "matmul_precision": ("matmul_precision", torch.set_float32_matmul_precision, "high", "highest"),
    "mkldnn": ("mkldnn", torch._C._set_mkldnn_enabled, False, True),
    "mkldnn deterministic": ("mkldnn", torch._C._set_mkldnn_deterministic, True, False),
    "cudnn": ("cudnn", torch._C._set_cudnn_enabled, False, True),
    "cudnn benchmark": ("cudnn", torch._C._set_cudnn_benchmark, True, False),
    "cudnn deterministic": ("cudnn", torch._C._set_cudnn_deterministic, True, False),
    "cudnn tf32": ("cudnn", torch._C._set_cudnn_allow_tf32, False, True),
    "matmul tf32": ("cuda_matmul", attribute(MATMUL, "allow_tf32"), True, False),
    "fp16 reduction": ("cuda_matmul", attribute(MATMUL, "allow_fp16_reduced_precision_reduction"), False, True),
    "bf16 reduction": ("cuda_matmul", attribute(MATMUL, "allow_bf16_reduced_precision_reduction"), False, True),
    "fp16 accumulation": ("cuda_matmul", attribute(MATMUL, "allow_fp16_accumulation"), True, False),
    "flash": ("sdp", CUDA.enable_flash_sdp, False, True),
    "memory efficient": ("sdp", CUDA.enable_mem_efficient_sdp, False, True),
    "math": ("sdp", CUDA.enable_math_sdp, False, True),
    "cudnn attention": ("sdp", CUDA.enable_cudnn_sdp, False, True),
    "math reduction": ("sdp", CUDA.allow_fp16_bf16_reduction_math_sdp, True, False),
    "fastpath": ("attention_fastpath", torch.backends.mha.set_fastpath_enabled, False, True),
    "anomaly": ("anomaly_mode", torch.autograd.anomaly_mode.set_detect_anomaly, True, False),
    "denormals": ("flush_denormal", torch.set_flush_denormal, True, False),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_kind_of_left_behind_state_shows_in_the_fingerprint(setting: str) -> None:
    field, change, other, own = SETTINGS[setting]
    change(own)
    before = torch_state()
    try:
        change(other)
        changed = {name for name, value in torch_state().items() if value != before[name]}
    except AttributeError:
        pytest.skip("this torch has no such setting")
    finally:
        change(own)
    assert field in changed
    assert torch_state() == before


def test_inference_mode_shows_too() -> None:
    before = torch_state()
    with torch.inference_mode():
        assert torch_state()["inference_mode"] != before["inference_mode"]


def test_the_state_can_be_read_where_the_newer_names_of_tf32_were_used_and_reading_starts_no_cuda() -> None:
    """In a process of its own: the newer names make the older ones raise from then on."""
    code = """
import torch
from amp_probe.session import torch_state
before = torch_state()
if hasattr(torch.backends, "fp32_precision"):
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert "fp32_precision" in {name for name, value in torch_state().items() if value != before[name]}
assert not torch.cuda.is_initialized()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
