"""How far this machine's right cells lie from their limits: the tables of docs/numerics.md. Run by `make calibrate`.

Every probe but the timings runs in every precision with several seeds. The ideal run is made for every tensor, also
where the judgement needs none, so that both numbers of every tensor stand beside their limits. Each instruction-set
level is a process of its own, since torch reads these settings when it is imported.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import statistics
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

LEVELS = (
    "",
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16",
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE",
    "ONEDNN_MAX_CPU_ISA=AVX2",
    "ATEN_CPU_CAPABILITY=avx2",
    "ATEN_CPU_CAPABILITY=default",
)
PRECISIONS = ("fp32", "bf16-mixed", "fp16-mixed", "bf16-true", "fp16-true")
FINE = ("ok", "unsupported", "not_run")
Record = dict[str, Any]


# --- in a child: the cells


def measured(device: str, seeds: int, first: int) -> Iterator[Record]:
    """What happens to every cell from a place in the plan on: a record as it begins, and one with what came of it."""
    import torch

    from amp_matrix.precision import parse
    from amp_probe.draw import Draw
    from amp_probe.harness import op, script
    from amp_probe.harness.recorder import Recorder
    from amp_probe.harness.script import Lab

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tensors: list[Record] = []
    op.compare = script.compare = _spy(tensors)
    for place, (spec, make) in list(enumerate(_plan()))[first:]:
        cell = {"place": place, "cell": spec.id, "tier": spec.tier, "precision": spec.precision}
        for salt in range(seeds):
            yield cell
            tensors.clear()
            recorder = Recorder(lambda name: None, lambda stage: None)
            draw = Draw(spec.probe, spec.variant, salt)
            _run(make, spec.id, Lab(torch.device(device), parse(spec.precision), draw, recorder))
            if recorder.stages:
                o = recorder.outcome()
                why = {"status": str(o.status), "reason": f"{o.stage}: {o.reason}", "code": o.code}
                yield cell | why | {"seconds": o.seconds, "tensors": list(tensors)}


def _plan() -> list[tuple[Any, Any]]:
    """Every cell with what makes its case, in one order: a variant's precisions stand together."""
    from amp_probe import probes
    from amp_probe.suite import plan

    found = probes.ALL or tuple(
        probe
        for module in pkgutil.iter_modules(probes.__path__)
        for probe in getattr(importlib.import_module(f"{probes.__name__}.{module.name}"), "PROBES", ())
    )
    makes = {(probe.name, variant): probe.make for probe in found for variant in probe.variants}
    specs = plan((probe for probe in found if not probe.alone), "core", (), PRECISIONS)
    return [(spec, makes[spec.probe, spec.variant]) for spec in specs]


def _run(make: Any, cell: str, lab: Any) -> None:
    """Run one cell, unless it only times."""
    from amp_probe import session
    from amp_probe.case import Op, Script, Training
    from amp_probe.harness.op import run_op
    from amp_probe.harness.recorder import Stopped
    from amp_probe.harness.script import run_script
    from amp_probe.harness.training import run_training

    session.seed(cell)
    case = make(lab.draw)
    run = {Op: run_op, Script: run_script, Training: run_training}.get(type(case))
    with suppress(Stopped):
        if run is not None:
            run(case, lab)


def _spy(tensors: list[Record]) -> Any:
    """The judgement of a tensor, which also writes down what the ideal run makes of it."""
    import torch

    from amp_probe.numerics import LIMITS, compare, measure

    def judge(name: str, got: Any, right: Any, eps: float, ideal: Any = None, **how: Any) -> Any:
        judgement = compare(name, got, right, eps, ideal, **how)
        error = judgement.error
        record = {"name": name, "n": error.n, "n_limit": error.n_limit, "s": error.s, "s_limit": error.s_limit}
        tensors.append(record)
        if eps < 1e-6 or how.get("exact") or ideal is None or got.shape != right.shape:
            return judgement
        best = ideal() if callable(ideal) else ideal
        if best is None:
            record |= {"n_limit": LIMITS.kept_n, "s_limit": float("inf"), "kept": True}
        else:
            finite = right.isfinite() & best.cpu().isfinite()
            exact, own = torch.where(finite, right, 0.0), torch.where(finite, best.cpu().double(), 0.0)
            n, s = measure(own, exact, eps, how.get("floor", 0.0))
            record |= {"n_ideal": n, "n_limit": LIMITS.n_factor * max(n, LIMITS.least_ideal)}
            record |= {"s_ideal": s, "s_limit": LIMITS.s_factor * max(s, LIMITS.least_ideal)}
        return judgement

    return judge


# --- in the parent: the levels


def surveyed(level: str, device: str, seeds: int) -> list[Record]:
    """Every record of a level. A cell that ends its process is a record too, and the next process goes on after it."""
    records: list[Record] = []
    environ = os.environ | dict([level.split("=")] if level else [])
    while True:
        first = records[-1]["place"] + 1 if records else 0
        command = [sys.executable, __file__, "--device", device, "--seeds", str(seeds), "--from", str(first)]
        done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.endswith("}")]
        records += [r for r in lines if "status" in r]
        if done.returncode == 0:
            return [r | {"level": level or "default"} for r in records]
        if not lines:
            raise SystemExit(f"{level or 'default'}: the process ended with {done.returncode} before its first cell")
        records.append(
            lines[-1] | {"status": "crash", "reason": f"exit code {done.returncode}", "code": "", "tensors": []}
        )


# --- the tables


def shares(records: Iterable[Record], number: str) -> list[float]:
    """A number of every judged tensor as a share of its limit. Exact cells have no limit to be near."""
    limit = f"{number}_limit"
    return [t[number] / t[limit] for r in records for t in r["tensors"] if 0.0 < t[limit] < float("inf")]


def spread(values: Sequence[float]) -> str:
    """Median, 99th percentile and maximum, as cells of a table."""
    if len(values) < 2:
        return "| | "
    return f"{statistics.median(values):.2f} | {statistics.quantiles(values, n=100)[98]:.2f} | {max(values):.2f}"


def table(records: Sequence[Record], tier: str) -> None:
    """For every level and precision: how near unflagged cells of a tier come to their limits."""
    print(f"\nUnflagged {tier} cells: shares of the limits of n and s (1 is the limit), median, 99%, largest.\n")
    print("| level | precision | cells | tensors | n | n 99% | n most | s | s 99% | s most | n_ideal most | flagged |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for r in records:
        if r["tier"] == tier:
            groups[r["level"], r["precision"]].append(r)
    for (level, precision), group in groups.items():
        good = [r for r in group if r["status"] == "ok"]
        n, s = shares(good, "n"), shares(good, "s")
        ideal = max((t["n_ideal"] for r in good for t in r["tensors"] if "n_ideal" in t), default=0.0)
        flagged = sum(r["status"] not in FINE for r in group)
        counts = f"{len(good)} | {sum(len(r['tensors']) for r in good)}"
        print(f"| {level} | {precision} | {counts} | {spread(n)} | {spread(s)} | {ideal:.2f} | {flagged} |")


def flagged(records: Sequence[Record], seeds: int) -> None:
    """Every flagged cell: at which levels, for how many seeds there, and a reason."""
    print(f"\nFlagged cells, with the levels and how many of {seeds} seeds each.\n")
    print("| cell | tier | status | levels (seeds) | a reason |\n|---|---|---|---|---|")
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for r in records:
        if r["status"] not in FINE:
            groups[r["cell"], r["tier"], r["status"]].append(r)
    for (cell, tier, status), group in groups.items():
        levels = {r["level"]: sum(r["level"] == g["level"] for g in group) for r in group}
        where = ", ".join(f"{level} ({count})" for level, count in levels.items())
        reason = " ".join(group[0]["reason"].replace("|", "/").split())
        print(f"| `{cell}` | {tier} | {status} | {where} | {reason[:160]} |")


def main() -> None:
    """Measure every level, one after the other, and print the tables."""
    parser = argparse.ArgumentParser(description="Print how near right cells come to the limits of docs/numerics.md.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--level", action="append", help="only this level, as NAME=VALUE ('' is the default)")
    parser.add_argument("--save", help="write every record to this file too, one JSON object a line")
    parser.add_argument("--from", type=int, dest="first", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.first is not None:
        for record in measured(asked.device, asked.seeds, asked.first):
            print(json.dumps(record), flush=True)
        return
    levels = asked.level if asked.level is not None else LEVELS if asked.device == "cpu" else ("",)
    records = [r for level in levels for r in surveyed(level, asked.device, asked.seeds)]
    if asked.save:
        with open(asked.save, "w", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(r)}\n" for r in records)
    for tier in ("essential", "stress"):
        table(records, tier)
    flagged(records, asked.seeds)


if __name__ == "__main__":
    main()
