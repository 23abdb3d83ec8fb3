"""`choose`: reads what was measured here and gives the plan. All of its effects are in this file."""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from amp_matrix.cell_id import parse as parse_cell
from amp_matrix.decide import decide, seconds_of
from amp_matrix.essential import unseen
from amp_matrix.plan import Plan, Prefer, Task
from amp_matrix.precision import nearest

if TYPE_CHECKING:
    import torch

    from amp_matrix.codec import DocumentError
    from amp_matrix.matrix import Known
    from amp_matrix.store import Store
    from amp_matrix.survey import Environment, Survey

__all__ = ["ChoiceError", "EvidenceWarning", "choose", "decide"]

OnMissing = Literal["fp32", "probe", "raise"]

PROBE_SECONDS = 300.0
"""How long `on_missing="probe"` waits for its child."""

_warned: dict[tuple[str, str], object] = {}
_probed: dict[tuple[str, str, str], str] = {}
"""What became of probing a device into a store under an identity: once in a process is enough."""


class ChoiceError(RuntimeError):
    """Nothing can vouch for a choice, and `on_missing="raise"` was asked for. The message says what is missing."""


class EvidenceWarning(UserWarning):
    """`choose` fell back to fp32 for want of evidence, or passed over evidence that is damaged."""


class _Here(msgspec.Struct, frozen=True):
    """The evidence of one environment: the surveys that count, and what to say of those that cannot be read."""

    environment: Environment
    surveys: tuple[Survey, ...]
    damage: str


class _Answer(msgspec.Struct, frozen=True):
    """A plan, what was missing to choose better, and what is damaged; "" for nothing. `cause` is what went wrong."""

    plan: Plan
    missing: str = ""
    damage: str = ""
    cause: Exception | None = None


def choose(
    device: str | torch.device | None = None,
    *,
    task: Task = "train",
    prefer: Prefer = "speed",
    store: Store | str | Path | None = None,
    needs: Sequence[str] = (),
    allow_fp8: bool = False,
    on_missing: OnMissing = "fp32",
) -> Plan:
    """The plan for a device (`cpu`, `cuda:0`, `mps`, `xpu:0`; None: the best present) by what was measured on it.

    `needs` names what must work beyond the essential cells: `op.conv2d`, `op.conv2d[channels_last]`. Nothing is probed
    unless `on_missing="probe"`, which runs `amp-probe run --suite quick` in a child where evidence is missing, once in
    a process, and reads again. Whatever is missing or wrong leads to fp32 with the reason in the plan and one
    EvidenceWarning per process and reason; only with `on_missing="raise"` it leads to a ChoiceError.
    """
    name = ""
    try:
        name = "" if device is None else str(device)
        wanted = (needs,) if isinstance(needs, str) else tuple(needs)
        policy = partial(_decided, wanted, task=task, prefer=prefer, allow_fp8=allow_fp8)
        _check(task, prefer, on_missing, wanted)
        name = _device(name)
        answer = _answer(name, store, policy, on_missing == "probe")
    except Exception as error:  # noqa: BLE001 -- a training script must go on, in fp32
        answer = _failed(name or "cpu", task, prefer, error)
    problem = answer.missing or answer.damage
    if answer.missing and on_missing == "raise":
        raise ChoiceError(f"{answer.plan.device}: {problem}") from answer.cause
    if problem and _warned.setdefault((answer.plan.device, problem), mark := object()) is mark:
        warnings.warn(f"{answer.plan.device}: {problem}", EvidenceWarning, stacklevel=2)
    return answer.plan


def _check(task: str, prefer: str, on_missing: str, needs: Sequence[str]) -> None:
    """ValueError names every argument that means nothing."""
    given = (("task", task, Task), ("prefer", prefer, Prefer), ("on_missing", on_missing, OnMissing))
    wrong = [f"{n}={v!r}: {nearest(str(v), get_args(words))}" for n, v, words in given if v not in get_args(words)]
    for need in needs:
        try:
            parse_cell(f"{need}@fp32")
        except ValueError:
            wrong.append(f"needs={need!r}: write op.conv2d, or op.conv2d[channels_last]")
    if wrong:
        raise ValueError(f"choose was called with what means nothing: {'; '.join(wrong)}")


def _decided(
    needs: Sequence[str], known: Mapping[str, Known], load: Callable[[], Sequence[Survey]], **asked: Any
) -> Plan:
    """The plan. All of the store is only loaded to explain what is missing."""
    missing = not known or any(unseen(need, known, ()) for need in needs)
    return decide(known, needs=needs, others=load() if missing else (), **asked)


def _answer(device: str, store: Store | str | Path | None, policy: Callable[..., Plan], probing: bool) -> _Answer:
    from amp_matrix.store import Store as Kept

    kept = Kept.default() if store is None else Kept(store) if isinstance(store, (str, Path)) else store
    answer = _read(kept, device, policy)
    if not (probing and answer.missing):
        return answer
    named = os.environ.get("AMP_PROBE_STORE") if store is None else store if isinstance(store, str) else None
    failed = _probe_once(device, named or str(kept.root))
    again = _read(kept, device, policy)
    if not (failed and again.missing):
        return again
    plan = msgspec.structs.replace(again.plan, reason=f"{failed}; {again.plan.reason}")
    return msgspec.structs.replace(again, plan=plan, missing=plan.reason)


def _read(store: Store, device: str, policy: Callable[..., Plan]) -> _Answer:
    from amp_matrix.matrix import select

    here = _here(store, device)
    known = select(here.surveys, here.environment.identity)
    plan = policy(known, lambda: store.load(brief=True).surveys, now=here.environment, device=device, at=time.time())
    if here.damage and plan.precision == "fp32":
        plan = msgspec.structs.replace(plan, reason=f"{plan.reason}; {here.damage}")
    return _Answer(plan, _missing(plan), here.damage)


def _here(store: Store, device: str) -> _Here:
    """What counts here and now: nothing that started before a damaged survey was written, which may say worse."""
    from amp_matrix.environment import capture, identity_key

    environment = capture(device)
    loaded = store.load(identity_key(environment), brief=True)
    written = max((_written(d) for d in loaded.damaged), default=-math.inf)
    counting = tuple(s for s in loaded.surveys if seconds_of(s.started) > written)
    return _Here(environment, counting, _damage(loaded.damaged))


def _written(damaged: DocumentError) -> float:
    """When a damaged file was last written (seconds since 1970); infinity where nobody can say."""
    try:
        return os.stat(damaged.source).st_mtime
    except (OSError, ValueError):
        return math.inf


def _damage(damaged: Sequence[DocumentError]) -> str:
    if not damaged:
        return ""
    name = damaged[0].source.replace("\\", "/").rpartition("/")[2]
    fault = next((f"{f.place}: {f.message}" for f in damaged[0].faults), "unreadable")
    more = f" and {len(damaged) - 1} more are" if len(damaged) > 1 else " is"
    return f"the stored survey {name}{more} damaged ({fault}), and nothing measured before counts; move it away"


def _missing(plan: Plan) -> str:
    """What is not known, where that left the plan with fp32; "" where fp32 was chosen by evidence."""
    if plan.precision != "fp32":
        return ""
    unknown = any(r.status == "unknown" for r in plan.rejected if "+" not in r.precision)
    return plan.reason if unknown or plan.evidence is None else ""


def _device(name: str) -> str:
    """A device by the name that surveys use: `cuda` is the current one, `cpu:0` and `mps:0` have no index."""
    import torch

    if not name:
        return _best()
    name = name.lower()
    kind, _, index = name.partition(":")
    if kind in ("cpu", "mps"):
        return kind if index in ("", "0") else name
    cuda: Any = torch.cuda
    if kind == "cuda" and not index and cuda.is_initialized():
        return f"cuda:{cuda.current_device()}"
    return name if index else f"{kind}:0" if kind in ("cuda", "xpu") else name


def _best() -> str:
    """The best kind of device that is present. Counting CUDA devices asks NVML, and creates no context."""
    import torch

    if torch.cuda.device_count() > 0:
        return "cuda:0"
    if torch.backends.mps.is_available():
        return "mps"
    xpu: Any = getattr(torch, "xpu", None)
    return "xpu:0" if xpu is not None and xpu.is_available() else "cpu"


def _probe_once(device: str, store: str) -> str:
    """As `_probe`, and in this process only the first time; nothing where no child can measure this process."""
    from amp_matrix.environment import capture, identity_key, unmeasurable

    environment = capture(device)
    if unmeasurable(environment.identity):
        return ""
    key = (device, store, identity_key(environment))
    if key not in _probed:
        _probed[key] = _probe(device, store)
    return _probed[key]


def _probe(device: str, store: str) -> str:
    """Measure the quick suite in a child; what went wrong, or ""."""
    import subprocess

    command = [sys.executable, "-m", "amp_probe", "run", "--suite", "quick", "--device", device]
    environ = {**os.environ, "AMP_PROBE_STORE": store, "PYTHONSAFEPATH": "1"}  # never what lies in this directory
    try:
        child = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"probing did not end within {PROBE_SECONDS:.0f} s"
    except OSError as error:
        return f"probing could not start: {error.strerror or error}"
    if child.returncode == 0:
        return ""
    lines = [line for line in child.stderr.decode(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")] or lines[-1:]
    return ": ".join([f"probing ended with exit code {child.returncode}", *errors[-1:]])


def _failed(device: str, task: Task, prefer: Prefer, error: Exception) -> _Answer:
    """fp32, without evidence; arguments that mean nothing are read as the defaults."""
    ours = isinstance(error, ValueError) or type(error).__module__.startswith("amp_matrix")
    what = " ".join(str(error).split())
    reason = what if ours and what else f"{type(error).__name__}: {what}"
    plan = Plan(
        device=device,
        task=task if task in get_args(Task) else "train",
        prefer=prefer if prefer in get_args(Prefer) else "speed",
        precision="fp32",
        reason=reason,
    )
    return _Answer(plan, missing=reason, cause=error)
