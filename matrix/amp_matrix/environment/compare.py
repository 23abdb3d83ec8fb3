"""Two environments: whether evidence from the one counts in the other, and what changed between them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from amp_matrix.precision import Precision
from amp_matrix.survey import Environment

_ALL = ("fp32", "tf32", "bf16", "fp16")
_FLOAT32 = ("fp32", "tf32")
_FP32 = ("fp32",)
"""A cell in tf32 sets these flags itself while it runs, and whoever uses tf32 has to set them."""

SCOPED: Mapping[str, tuple[str, ...]] = {
    "float32_matmul_precision": _FP32,
    "fp32_precision": _FLOAT32,
    "cuda.matmul.fp32_precision": _FP32,
    "cudnn.conv.fp32_precision": _FP32,
    "cudnn.rnn.fp32_precision": _FP32,
    "mkldnn.matmul.fp32_precision": _FLOAT32,
    "mkldnn.conv.fp32_precision": _FLOAT32,
    "mkldnn.rnn.fp32_precision": _FLOAT32,
    "cudnn.allow_tf32": _FP32,
    "ONEDNN_DEFAULT_FPMATH_MODE": _FLOAT32,
    "NVIDIA_TF32_OVERRIDE": _FLOAT32,
    "allow_fp16_reduced_precision_reduction": ("fp16",),
    "allow_bf16_reduced_precision_reduction": ("bf16",),
    "allow_fp16_accumulation": ("fp16",),
    "preferred_blas": _ALL,
    "sdp_backends": _ALL,
    "transformer_engine": ("te-",),
    "torchao": ("torchao-",),
}
"""Each scoped field, with the families of precisions and the beginnings of FP8 recipes that it can change."""

_LABELS = {
    "torch_git": "torch's commit",
    "architecture": "the architecture",
    "os": "the operating system",
    "device": "the device's kind",
    "cpu_capability": "torch's CPU capability",
    "blas": "the BLAS library",
    "mkldnn": "oneDNN in use",
    "flush_denormal": "flushing of denormals",
    "name": "the device's name",
    "capability": "the compute capability",
    "multiprocessors": "the number of multiprocessors",
    "cudnn": "cuDNN",
    "driver": "the driver",
    "chip": "the chip",
    "macos": "macOS",
    "cuda": "CUDA",
    "hip": "HIP",
    "amx": "AMX usable",
    "avx512_bf16": "AVX512-BF16 usable",
    "avx512_fp16": "AVX512-FP16 usable",
}


_CALLS = (
    ("flush_denormal", "yes", "torch.set_flush_denormal(True)"),
    ("mkldnn", "no", "torch.backends.mkldnn.enabled = False"),
)
"""Identity fields with the value that only a call in this very process gives them, and that call."""


def identity_key(environment: Environment) -> str:
    """The identity as 16 hex digits: equal for equal identities, and the name of their folder in a store."""
    text = json.dumps(environment.identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """One sentence for each field that differs, by the fields' order: `torch 2.12.0 then, 2.13.0 now`."""
    fields = dict.fromkeys([*then, *now])
    return tuple(
        f"{_LABELS.get(f, f)} {_said(f, then)} then, {_said(f, now)} now" for f in fields if then.get(f) != now.get(f)
    )


def unmeasurable(identity: Mapping[str, str]) -> tuple[str, ...]:
    """The calls that this process has made, after which no new process can measure what holds in it."""
    return tuple(call for field, value, call in _CALLS if identity.get(field) == value)


def applies(field: str, precision: Precision) -> bool:
    """Whether a scoped field can change a precision's results. A field that is not known may change them all."""
    scope = SCOPED.get(field)
    if scope is None or precision.family in scope:
        return True
    return any(precision.recipe.startswith(prefix) for prefix in scope)


def _said(field: str, values: Mapping[str, str]) -> str:
    if field not in values:
        return "not recorded"
    return values[field][:12] if field == "torch_git" and values[field] else values[field] or "unset"
