"""What a worker of amp-probe does with a request: find devices, capture the environment, run one cell."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import torch
import torch._dynamo  # what an optimizer's first step would import, once a worker, leaving a changed environment
import torch.utils.benchmark

from amp_matrix import codec, environment
from amp_matrix.kinds import KINDS
from amp_matrix.precision import parse
from amp_matrix.survey import Outcome, Stage, Status, conclude, not_run
from amp_probe import devices, precisions, simulate
from amp_probe.announce import BEGIN, END
from amp_probe.case import Case, Op, Script, Timing, Training
from amp_probe.harness.op import run_op
from amp_probe.harness.recorder import Recorder, Stopped
from amp_probe.harness.script import Lab, run_script
from amp_probe.harness.timing import run_timing
from amp_probe.harness.training import run_training
from amp_probe.numerics import Draw
from amp_probe.probes import ALL
from amp_probe.request import (
    Capture,
    CaptureSimulated,
    FindDevices,
    ListCells,
    Request,
    RunCell,
    Setting,
    Simulate,
    Spec,
)
from amp_probe.suite import Probe, plan
from amp_probe.worker import Reply

_TRUSTED = (Status.OK, Status.UNSUPPORTED)
_REDUCTIONS = (
    "allow_fp16_reduced_precision_reduction",
    "allow_fp16_reduced_precision_reduction_split_k",
    "allow_bf16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction_split_k",
    "allow_fp16_accumulation",
)
_SDP = (
    "flash_sdp_enabled",
    "mem_efficient_sdp_enabled",
    "math_sdp_enabled",
    "cudnn_sdp_enabled",
    "fp16_bf16_reduction_math_sdp_allowed",
)


class Session:
    """One worker's state: the device and the probes it knows by name and variant."""

    def __init__(self, setting: Setting) -> None:
        torch.set_num_threads(1)  # threads change partial sums and blur timings (docs/numerics.md)
        self._device = setting.device
        self._all = registry(setting.modules)
        self._probes = {(p.name, v): p for p in self._all for v in p.variants}

    def run(self, payload: bytes, announce: Callable[[bytes], None]) -> Reply:
        """Answer one request; a cell's stages are announced as they begin and end."""
        match msgspec.msgpack.decode(payload, type=Request):
            case ListCells(suite, globs, precisions, timeout):
                return _reply(plan(self._all, suite, globs, precisions, timeout))
            case FindDevices(asked):
                return _reply(devices.resolve(asked))
            case Capture():
                captured = environment.capture(self._device, may_initialize=True)
                return Reply(codec.encode_environment(captured), suspect=False)
            case RunCell(spec):
                outcome = self._cell(spec, announce)
                return Reply(codec.encode_outcome(outcome), suspect=outcome.status not in _TRUSTED)
            case CaptureSimulated(kind):
                return Reply(codec.encode_environment(simulate.environment(kind)), suspect=False)
            case Simulate(kind, precision):
                seen = simulate.outcome(kind, parse(precision), lambda name: announce(BEGIN + name.encode()))
                return Reply(codec.encode_outcome(seen), suspect=False)

    def canary(self) -> str:
        """What is wrong with the device after a failure, or ""."""
        return devices.backend(self._device).canary(torch.device(self._device))

    def fingerprint(self) -> dict[str, str]:
        """Every piece of global torch state that a cell could leave changed."""
        return torch_state()

    def _cell(self, spec: Spec, announce: Callable[[bytes], None]) -> Outcome:
        probe = self._probes.get((spec.probe, spec.variant))
        if probe is None:
            return not_run("this amp-probe has no such probe", "unknown_probe")
        precision = parse(spec.precision)
        refusal = precisions.refusal(precision, torch.device(self._device))
        if refusal:
            return conclude([Stage(name="build", status=Status.UNSUPPORTED, reason=refusal, code="declared")])
        recorder = Recorder(
            lambda name: announce(BEGIN + name.encode()),
            lambda stage: announce(END + codec.encode_stage(stage)),
        )
        seed(spec.id)
        draw = Draw(spec.probe, spec.variant)
        lab = Lab(torch.device(self._device), precision, draw, recorder)
        with contextlib.suppress(Stopped), precisions.hold(precision):
            _run_case(_make(probe, draw, recorder), lab)
        return recorder.outcome()


def open_session(argument: bytes) -> Session:
    """The worker's entry: a session for an encoded Setting."""
    return Session(msgspec.msgpack.decode(argument, type=Setting))


def registry(modules: Iterable[str] = ()) -> tuple[Probe, ...]:
    """The probes that ship, and those that each named module declares as PROBES; ValueError where two are the same."""
    probes = ALL + tuple(p for name in modules for p in importlib.import_module(name).PROBES)
    counts = Counter((p.name, variant) for p in probes for variant in p.variants)
    twice = [f"{name}[{variant}]" for (name, variant), count in counts.items() if count > 1]
    if twice:
        raise ValueError(f"declared twice: {', '.join(twice)}")
    return probes


def seed(text: str) -> None:
    """Seed torch, random and (where loaded) numpy from a text, so that no cell depends on what ran before it."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
    torch.manual_seed(number)
    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number)


def torch_state() -> dict[str, str]:
    """The global state of torch that changes results, each value as text."""
    flags = {
        "default_dtype": torch.get_default_dtype(),
        "default_device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "grad_enabled": torch.is_grad_enabled(),
        "inference_mode": torch.is_inference_mode_enabled(),
        "autocast": [torch.is_autocast_enabled(k) for k in KINDS],
        "autocast_dtype": [torch.get_autocast_dtype(k) for k in KINDS],
        "autocast_cache": torch.is_autocast_cache_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill_uninitialized": _ask(torch.utils.deterministic, "fill_uninitialized_memory"),
        "matmul_precision": _ask(torch, "get_float32_matmul_precision"),
        "fp32_precision": [_ask(owner, "fp32_precision") for owner in _fp32_owners()],
        "mkldnn": [_ask(torch.backends.mkldnn, n) for n in ("enabled", "deterministic", "allow_tf32")],
        "cudnn": [_ask(torch.backends.cudnn, n) for n in ("enabled", "benchmark", "deterministic", "allow_tf32")],
        "cuda_matmul": [_ask(torch.backends.cuda.matmul, n) for n in ("allow_tf32", *_REDUCTIONS)],
        "sdp": [_ask(torch.backends.cuda, n) for n in _SDP],
        "attention_fastpath": _ask(torch.backends.mha, "get_fastpath_enabled"),
        "flush_denormal": (torch.tensor(1e-40, dtype=torch.float32, device="cpu") * 1).item() == 0.0,
        "anomaly_mode": torch.is_anomaly_enabled(),
    }
    return {name: str(value) for name, value in flags.items()}


def _ask(owner: Any, name: str) -> object:
    """A setting, or what a function without arguments gives, or why it cannot be read.

    Older torch has not all of them; after a use of `fp32_precision` the older names of TF32 raise.
    """
    try:
        value = getattr(owner, name, None)
        return value() if callable(value) else value
    except (AttributeError, RuntimeError) as error:
        return type(error).__name__


def _fp32_owners() -> list[Any]:
    """Whatever has a setting `fp32_precision` (torch 2.9)."""
    backends = torch.backends
    owners: list[Any] = [backends, backends.cuda.matmul, backends.cudnn, backends.mkldnn]
    return owners + [getattr(o, n, None) for o in owners[2:] for n in ("conv", "rnn", "matmul")]


def _reply(content: object) -> Reply:
    return Reply(msgspec.msgpack.encode(content), suspect=False)


def _make(probe: Probe, draw: Draw, recorder: Recorder) -> Case:
    """The probe's case; an exception while it is described becomes the stage `describe`."""
    try:
        return probe.make(draw)
    except Exception as error:
        with recorder.stage("describe"):
            raise error
        raise Stopped from error


def _run_case(case: Case, lab: Lab) -> None:
    match case:
        case Op():
            run_op(case, lab)
        case Training():
            run_training(case, lab)
        case Script():
            run_script(case, lab)
        case Timing():
            run_timing(case, lab)
