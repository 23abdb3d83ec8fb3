"""What `choose` returns: the precision, why, and what was rejected by which cell."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from amp_matrix.precision import Precision
from amp_matrix.survey import Real

if TYPE_CHECKING:
    import torch

Task = Literal["train", "infer"]
Prefer = Literal["speed", "memory"]

_TF32 = (
    'set torch.set_float32_matmul_precision("high") and torch.backends.cudnn.allow_tf32 = True: tf32 is a setting of'
    " the process, and plan.autocast() does not enter it"
)


_WIDE = 2.0
"""An interval whose bounds lie further apart than this is said with "about"."""

CAVEATS = 5
"""At most this many caveats are said in full."""


class Gain(msgspec.Struct, frozen=True):
    """Measured speed as a multiple of fp32's: the interval's bounds (2.0 is twice as fast)."""

    low: Real
    high: Real

    @property
    def wide(self) -> bool:
        """Whether its bounds lie so far apart that it is said with "about"."""
        return self.high > _WIDE * self.low

    def __str__(self) -> str:
        if self.wide:
            return f"about {self.low:.1f}x to {self.high:.1f}x fp32"
        return f"{self.low:.2f}x to {self.high:.2f}x fp32"


class Rejection(msgspec.Struct, frozen=True):
    """Why a precision was not chosen: the first cell that blocked it ("" where no cell did), and one sentence.

    `status` is that cell's; `unknown` where nothing that counts was measured, and `ok` where the precision is eligible
    and another one was better. `gain` is its measured speed where it is eligible.
    """

    precision: str
    cell: str
    status: str
    reason: str
    gain: Gain | None = None


class Proof(msgspec.Struct, frozen=True):
    """The oldest survey that a choice rests on: its id, its start (UTC, ISO 8601) and its age in seconds.

    The age is NaN where the time of now is not known.
    """

    survey: str
    started: str
    age: Real


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The precision to use on a device for a task, with its evidence."""

    device: str
    task: Task
    prefer: Prefer
    precision: str
    fp8: str = "none"
    reason: str
    gain: Gain | None = None
    rejected: tuple[Rejection, ...] = ()
    caveats: tuple[str, ...] = ()
    evidence: Proof | None = None

    @property
    def param_dtype(self) -> torch.dtype:
        """The torch dtype that parameters (and inputs) are kept in: torch.float32 but for `*-true`."""
        import torch

        dtype: torch.dtype = getattr(torch, Precision(self.precision, self.fp8).storage)
        return dtype

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """A new context for the forward pass and the loss: torch.autocast for `*-mixed`, else one that does nothing."""
        precision = Precision(self.precision, self.fp8)
        if not precision.mixed:
            return contextlib.nullcontext()
        import torch

        return torch.autocast(self._kind, dtype=getattr(torch, precision.dtype), enabled=True)

    def grad_scaler(self) -> torch.amp.GradScaler:
        """A new GradScaler; it scales only to train in `fp16-mixed`, and elsewhere lets everything through."""
        import torch

        return torch.amp.GradScaler(self._kind, enabled=self.precision == "fp16-mixed" and self.task == "train")

    def explain(self) -> str:
        """The plan in plain lines: what, why, on what evidence, what was rejected, what to beware of."""
        name = Precision(self.precision, self.fp8)
        lines = [f"{self.device}: {name} to {self.task}, preferring {self.prefer}", f"why: {self.reason}"]
        lines += [f"speed: {self.gain}"] if self.gain else []
        lines += [f"to do: {_TF32}"] if self.precision == "tf32" else []
        lines.append(f"evidence: {_proof(self.evidence)}")
        lines += [f"not {r.precision}: {r.reason}" for r in self.rejected]
        lines += [f"caveat: {caveat}" for caveat in self.caveats[:CAVEATS]]
        if len(self.caveats) > CAVEATS:
            lines.append(f"and {len(self.caveats) - CAVEATS} more: amp-probe show{self._filters()}")
        return "\n".join(lines)

    def __str__(self) -> str:
        """What and why, in two lines; `explain` has the rest."""
        return "\n".join(self.explain().split("\n")[:2])

    def _filters(self) -> str:
        """The options of amp-probe show that leave the caveats' cells."""
        found = dict.fromkeys(part[1] for caveat in self.caveats if len(part := caveat.split(": ", 2)) > 1)
        return f" --device {self.device}" + "".join(f" --status {status}" for status in found)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values for JSON; a float that JSON cannot hold is "nan", "inf" or "-inf"."""
        plain: dict[str, Any] = _finite(msgspec.to_builtins(self, enc_hook=float))
        return {"format": 1, "kind": "plan", **plain}

    def to_json(self) -> bytes:
        """One JSON object in UTF-8, indented, with a newline at its end."""
        return msgspec.json.format(msgspec.json.encode(self.to_dict()), indent=2) + b"\n"

    @property
    def _kind(self) -> str:
        return self.device.partition(":")[0]


def _proof(proof: Proof | None) -> str:
    if proof is None:
        return "none"
    age = f", {_span(proof.age)} ago" if math.isfinite(proof.age) else ""
    return f"survey {proof.survey[:12]}, measured {proof.started}{age}"


def _span(seconds: float) -> str:
    """A time span in its largest whole unit: `3 days`."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return "less than a minute"


def _finite(plain: Any) -> Any:
    match plain:
        case float():
            return plain if math.isfinite(plain) else str(plain)
        case dict():
            return {key: _finite(value) for key, value in plain.items()}
        case list() | tuple():
            return [_finite(value) for value in plain]
    return plain
