"""`amp-probe choose`: the precision to use here, and why."""

from __future__ import annotations

import shlex
import warnings
from typing import Annotated, cast

import typer

from amp_matrix.kinds import KINDS
from amp_matrix.plan import Plan, Prefer, Task
from amp_matrix.precision import Precision
from amp_matrix.store import Store
from amp_probe.cli import options as o
from amp_probe.cli import output
from amp_probe.cli.refused import Faults, device_name

EXAMPLES = """\b
Examples:
  amp-probe choose                               for the best device here, to train
  amp-probe choose --device cpu --task infer
  amp-probe choose --prefer memory --format json
  eval "$(amp-probe choose --format shell)"; echo "$AMP_PRECISION"
"""
FORMATS = ("text", "json", "shell")


Device = Annotated[
    str | None,
    typer.Option(
        metavar="DEVICE",
        help="cpu, cuda:0, mps, xpu:0. Without it, the best one here.",
        autocompletion=o.starting(KINDS),
    ),
]
TaskName = Annotated[
    str | None,
    typer.Option(
        metavar=o.one_of(o.TASKS), help="What it is for [default: train].", autocompletion=o.starting(o.TASKS)
    ),
]
Preferred = Annotated[
    str | None,
    typer.Option(
        metavar=o.one_of(o.PREFERS),
        help="speed wants a measured gain over fp32; memory does not [default: speed].",
        autocompletion=o.starting(o.PREFERS),
    ),
]
Format = Annotated[
    str, typer.Option(metavar=o.one_of(FORMATS), help="How to print it.", autocompletion=o.starting(FORMATS))
]


def command(
    device: Device = None,
    task: TaskName = None,
    prefer: Preferred = None,
    format: Format = "text",
    color: o.Color = None,
) -> int:
    """Print the cheapest precision that every essential cell here allows, and what was rejected by which cell.

    Reads what was measured, and measures nothing. Where nothing is known it says fp32, and why; the exit code is 0.
    """
    faults = Faults()
    config = o.configuration(faults)
    if device is not None:
        faults.read("--device", device, device_name)
    wanted = faults.choice("--task", task or config.task or "train", o.TASKS)
    preferred = faults.choice("--prefer", prefer or config.prefer or "speed", o.PREFERS)
    faults.choice("--format", format, FORMATS)
    faults.check()
    plan = _choose(device, cast(Task, wanted), cast(Prefer, preferred), o.store_of(config))
    if format == "json":
        output.data(plan.to_json())
    else:
        output.text(_shell(plan) if format == "shell" else output.wrapped(f"{plan.explain()}\n"))
    return 0


def _choose(device: str | None, task: Task, prefer: Prefer, store: Store) -> Plan:
    from amp_matrix.choose import choose

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan = choose(device, task=task, prefer=prefer, store=store)
    for warning in caught:
        output.warn(str(warning.message))
    return plan


def _shell(plan: Plan) -> str:
    """Assignments that a POSIX shell reads; not named AMP_PROBE_*, which are the configuration's."""
    precision = Precision(plan.precision, plan.fp8)
    values = {
        "AMP_DEVICE": plan.device,
        "AMP_PRECISION": plan.precision,
        "AMP_DTYPE": precision.dtype,
        "AMP_AUTOCAST": "1" if precision.mixed else "0",
        "AMP_GRAD_SCALER": "1" if plan.precision == "fp16-mixed" and plan.task == "train" else "0",
        "AMP_FP8": plan.fp8,
        "AMP_REASON": plan.reason,
    }
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
