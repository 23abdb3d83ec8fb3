"""What identifies this machine, captured for real, and the comparisons that decide whether evidence counts."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from amp_matrix.environment import SCOPED, CaptureError, applies, capture, differences, identity_key
from amp_matrix.environment import cpu as cpu_facts
from amp_matrix.environment import cuda as cuda_facts
from amp_matrix.environment.common import flag, float32_flags, variable
from amp_matrix.precision import COMPUTES, Precision
from amp_matrix.survey import Environment

CAPTURE = """
import json, sys
from amp_matrix.environment import capture
import torch
print(json.dumps(capture(sys.argv[1]).identity))
"""


def captured_elsewhere(**environ: str) -> dict[str, str]:
    """The CPU's identity as another process with these variables sees it."""
    child = subprocess.run(
        [sys.executable, "-c", CAPTURE, "cpu"], env={**os.environ, **environ}, capture_output=True, check=True
    )
    found: dict[str, str] = json.loads(child.stdout)
    return found


@pytest.fixture
def flush_denormals() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush denormals")
    yield
    torch.set_flush_denormal(False)


def test_the_cpu_has_every_identity_field_and_nothing_unknown_among_them() -> None:
    found = capture("cpu").identity
    unset = {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"}
    assert {"torch", "torch_git", "architecture", "os", "cpu_capability", "blas", "mkldnn", "flush_denormal"} < set(
        found
    )
    assert not [f for f, value in found.items() if not value and f not in unset]
    assert found["device"] == "cpu"


def test_another_process_sees_the_same_identity() -> None:
    assert captured_elsewhere() == capture("cpu").identity


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("ATEN_CPU_CAPABILITY", "default", "cpu_capability", "DEFAULT"),
        ("ATEN_CPU_CAPABILITY", "default", "ATEN_CPU_CAPABILITY", "default"),
        ("ONEDNN_MAX_CPU_ISA", "avx2", "ONEDNN_MAX_CPU_ISA", "AVX2"),
        ("DNNL_MAX_CPU_ISA", "AVX2", "ONEDNN_MAX_CPU_ISA", "AVX2"),
        ("ONEDNN_MAX_CPU_ISA", "DEFAULT", "ONEDNN_MAX_CPU_ISA", ""),
        ("ONEDNN_MAX_CPU_ISA", "/home/somebody/x", "ONEDNN_MAX_CPU_ISA", "OTHER"),
    ],
)
def test_a_variable_that_changes_the_kernels_changes_the_identity(
    name: str, value: str, field: str, expected: str
) -> None:
    assert captured_elsewhere(**{name: value})[field] == expected


def test_flushing_denormals_changes_the_identity(flush_denormals: None) -> None:
    assert capture("cpu").identity["flush_denormal"] == "yes"


def test_denormals_are_kept_by_default() -> None:
    assert capture("cpu").identity["flush_denormal"] == "no"


def test_turning_onednn_off_changes_the_identity() -> None:
    torch._C._set_mkldnn_enabled(False)  # the public flags() also sets TF32, and warns of it on a CPU build
    try:
        assert capture("cpu").identity["mkldnn"] == "no"
    finally:
        torch._C._set_mkldnn_enabled(True)
    assert capture("cpu").identity["mkldnn"] == "yes"


def test_the_float32_flags_are_scoped_and_the_thread_count_is_only_recorded() -> None:
    before = capture("cpu")
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    try:
        torch.set_float32_matmul_precision("medium")
        torch.set_num_threads(threads + 1)
        after = capture("cpu")
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)
    assert after.identity == before.identity
    assert after.scoped["float32_matmul_precision"] == "medium"
    assert after.recorded["threads"] == str(threads + 1)


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="torch before 2.9 has one float32 setting only")
def test_contradicting_float32_settings_are_said_and_not_raised() -> None:
    """In a child: the settings are global, and no call takes the contradiction back."""
    code = """
import torch
from amp_matrix.environment.common import float32_flags
torch.set_float32_matmul_precision("highest")
torch.backends.cuda.matmul.fp32_precision = "tf32"
found = float32_flags("cuda")
print(found["float32_matmul_precision"], found["cuda.matmul.fp32_precision"])
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.split() == ["mixed", "tf32"]


def test_no_value_names_the_machine_the_user_or_a_folder() -> None:
    found = capture("cpu")
    values = [*found.identity.values(), *found.scoped.values(), *found.recorded.values()]
    assert not [v for v in values if "/" in v or "\\" in v]
    assert not [v for v in values if platform.node() and platform.node() in v]


def test_a_capture_costs_little_and_initialises_no_device() -> None:
    capture("cpu")
    started = time.process_time()
    for _ in range(20):
        capture("cpu")
    assert (time.process_time() - started) / 20 < 0.005
    assert not torch.cuda.is_initialized()


def test_a_capture_works_whatever_defaults_the_program_has_set() -> None:
    before = capture("cpu").identity
    with torch.device("meta"), torch.inference_mode():
        torch.set_default_dtype(torch.float64)
        try:
            assert capture("cpu").identity == before
        finally:
            torch.set_default_dtype(torch.float32)


def test_importing_the_module_imports_no_torch() -> None:
    code = "import sys, amp_matrix.environment; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip() == b"False"


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CUDA", "cpu ", "", "cuda:-1"])
def test_a_name_that_means_nothing_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match="unknown device"):
        capture(device)


def test_a_device_that_is_not_here_is_said_in_one_line() -> None:
    absent = [
        ("cuda", torch.version.cuda or torch.version.hip),
        ("mps", sys.platform == "darwin"),
        ("xpu", torch.xpu._is_compiled()),
    ]
    for device, may_be_here in absent:
        if not may_be_here:
            with pytest.raises(CaptureError, match=r"CUDA|MPS|XPU"):
                capture(device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_nvml_and_torch_name_the_same_gpu() -> None:
    code = """
import json, torch
from amp_matrix.environment import capture
before = capture("cuda:0").identity
assert not torch.cuda.is_initialized()
torch.cuda.init()
print(json.dumps([before, capture("cuda:0").identity]))
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = json.loads(child.stdout)
    assert before == after


def test_the_key_is_sixteen_hex_digits_of_the_identity_alone() -> None:
    one = Environment({"torch": "2.13.0", "device": "cpu"}, {"a": "1"}, {"threads": "2"})
    two = Environment({"device": "cpu", "torch": "2.13.0"}, {"a": "2"}, {"threads": "4"})
    other = msgspec.structs.replace(one, identity={"device": "cpu", "torch": "2.13.1"})
    assert re.fullmatch(r"[0-9a-f]{16}", identity_key(one))
    assert identity_key(one) == identity_key(two)
    assert identity_key(one) != identity_key(other)


_fields = st.dictionaries(st.sampled_from("abcde"), st.text(max_size=3))


@given(_fields, _fields)
def test_keys_differ_exactly_where_there_is_a_difference(then: dict[str, str], now: dict[str, str]) -> None:
    same = identity_key(Environment(then)) == identity_key(Environment(now))
    assert same == (differences(then, now) == ())


@given(_fields, _fields)
def test_each_field_that_differs_has_one_sentence(then: dict[str, str], now: dict[str, str]) -> None:
    assert len(differences(then, now)) == sum(then.get(f) != now.get(f) for f in {*then, *now})


def test_differences_read_like_sentences() -> None:
    then = {"torch": "2.12.0", "torch_git": "a" * 40, "ONEDNN_MAX_CPU_ISA": "", "driver": "550", "same": "x"}
    now = {"torch": "2.13.0", "torch_git": "b" * 40, "ONEDNN_MAX_CPU_ISA": "AVX2", "amx": "yes", "same": "x"}
    assert differences(then, now) == (
        "torch 2.12.0 then, 2.13.0 now",
        "torch's commit aaaaaaaaaaaa then, bbbbbbbbbbbb now",
        "ONEDNN_MAX_CPU_ISA unset then, AVX2 now",
        "the driver 550 then, not recorded now",
        "AMX usable not recorded then, yes now",
    )


@pytest.mark.parametrize(
    ("field", "precision", "expected"),
    [
        ("float32_matmul_precision", Precision("fp32"), True),
        ("float32_matmul_precision", Precision("tf32"), False),
        ("cudnn.allow_tf32", Precision("tf32"), False),
        ("NVIDIA_TF32_OVERRIDE", Precision("tf32"), True),
        ("float32_matmul_precision", Precision("bf16-mixed"), False),
        ("allow_fp16_accumulation", Precision("fp16-true"), True),
        ("allow_fp16_accumulation", Precision("bf16-true"), False),
        ("allow_bf16_reduced_precision_reduction", Precision("bf16-mixed", "te-mxfp8"), True),
        ("transformer_engine", Precision("bf16-mixed", "te-mxfp8"), True),
        ("transformer_engine", Precision("bf16-mixed", "torchao-mxfp8"), False),
        ("transformer_engine", Precision("bf16-mixed"), False),
        ("torchao", Precision("bf16-mixed", "torchao-mxfp8"), True),
        ("torchao", Precision("bf16-mixed", "torch-rowwise"), False),
        ("a field of tomorrow", Precision("fp32"), True),
    ],
)
def test_a_scoped_field_counts_only_where_it_can_change_results(
    field: str, precision: Precision, expected: bool
) -> None:
    assert applies(field, precision) is expected


def test_every_scoped_field_that_is_captured_has_a_scope() -> None:
    assert set(capture("cpu").scoped) <= set(SCOPED)
    for kind in ("cpu", "cuda", "mps", "xpu"):
        assert set(float32_flags(kind)) <= set(SCOPED)
    assert set(cuda_facts._flags()) <= set(SCOPED)


def test_every_scope_is_of_a_precision_that_exists() -> None:
    families = {Precision(c).family for c in COMPUTES}
    for scope in SCOPED.values():
        assert all(s in families or s in ("te-", "torchao-", "torch-") for s in scope)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("  - Intel(R) MKL-DNN v3.12.0 (Git Hash 80a)\n  - Build settings: BLAS_INFO=mkl, X=1", ("mkl", "3.12.0")),
        ("  - oneDNN v3.5\n  - Build settings: LAPACK_INFO=open, BLAS_INFO=open, ", ("open", "3.5")),
        ("  - Build settings: BLAS_INFO=accelerate, ", ("accelerate", "")),
        ("", ("", "")),
    ],
)
def test_the_libraries_are_read_from_torchs_build_settings(config: str, expected: tuple[str, str]) -> None:
    assert cpu_facts.built_with(config) == expected


@pytest.mark.parametrize(
    ("arch", "has", "granted", "expected"),
    [
        ("x86_64", {"amx", "avx512_bf16"}, True, {"amx": "yes", "avx512_bf16": "yes", "avx512_fp16": "no"}),
        ("x86_64", {"amx"}, False, {"amx": "no", "avx512_bf16": "no", "avx512_fp16": "no"}),
        ("aarch64", {"arm_bf16"}, True, {"arm_bf16": "yes", "arm_fp16": "no"}),
    ],
)
def test_an_instruction_is_usable_where_the_processor_has_it_and_the_kernel_lets_it_run(
    arch: str, has: set[str], granted: bool, expected: dict[str, str]
) -> None:
    assert cpu_facts.instructions(arch, has.__contains__, lambda: granted) == expected


def test_amx_is_not_asked_of_the_kernel_where_the_processor_has_none() -> None:
    asked: list[bool] = []
    cpu_facts.instructions("x86_64", lambda field: False, lambda: bool(asked.append(True)) or True)
    assert asked == []


@pytest.mark.parametrize(
    ("value", "expected"), [(None, ""), ("1", "1"), ("", "other"), ("/home/x", "other"), ("a b", "other")]
)
def test_a_variable_is_kept_only_as_a_plain_word(
    value: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("AMP_TEST_SWITCH", raising=False)
    else:
        monkeypatch.setenv("AMP_TEST_SWITCH", value)
    assert variable("AMP_TEST_SWITCH") == expected


def test_a_flag_that_this_torch_lacks_is_empty() -> None:
    assert flag(lambda: torch.backends.no_such_setting) == ""
    assert (flag(lambda: True), flag(lambda: "ieee")) == ("yes", "ieee")


def test_the_settings_that_a_tf32_plan_asks_for_leave_its_evidence_valid() -> None:
    precision, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    before = float32_flags("cuda")
    try:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        after = float32_flags("cuda")
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = cudnn
    changed = {field for field in {*before, *after} if before.get(field) != after.get(field)}
    assert "float32_matmul_precision" in changed
    assert not [field for field in changed if applies(field, Precision("tf32"))]
    assert [field for field in changed if applies(field, Precision("fp32"))]
