"""How far this machine's right cells lie from their limits: the tables of docs/numerics.md. Run by `make calibrate`.

Every probe but the timings runs in every precision with several seeds. The ideal run is made for every tensor, also
where the judgement needs none, so that both numbers of every tensor stand beside their limits. Each instruction-set
level is a process of its own, since torch reads these settings when it is imported.
"""

from __future__ import annotations

import argparse
import json
import os
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
PRECISIONS = ("fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16-true", "fp16-true")
FINE = ("ok", "unsupported", "not_run")
Record = dict[str, Any]


# --- in a child: the cells


def measured(device: str, seeds: int, globs: Sequence[str], first: int) -> Iterator[Record]:
    """What happens to every cell from a place in the plan on: a record as it begins, and one with what came of it."""
    import torch

    from amp_matrix.precision import parse
    from amp_probe.draw import Draw
    from amp_probe.harness import script
    from amp_probe.harness.recorder import Recorder
    from amp_probe.harness.script import Lab

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tensors: list[Record] = []
    script.compare = _spy(tensors)  # Lab.judge's, which every kind of case is judged by
    for place, (spec, make) in list(enumerate(_plan(device, globs)))[first:]:
        for salt in range(seeds):
            cell = {"place": place, "cell": spec.id, "tier": spec.tier, "precision": spec.precision, "salt": salt}
            yield cell
            tensors.clear()
            recorder = Recorder(lambda name: None, lambda stage: None)
            draw = Draw(spec.probe, spec.variant, salt)
            _run(make, spec.id, Lab(torch.device(device), parse(spec.precision), draw, recorder))
            if recorder.stages:
                o = recorder.outcome()
                why = {"status": str(o.status), "reason": f"{o.stage}: {o.reason}", "code": o.code}
                numbers = {name: value for stage in o.stages for name, value in stage.numbers.items()}
                yield cell | why | {"seconds": o.seconds, "tensors": list(tensors), "numbers": numbers}


def _plan(device: str, globs: Sequence[str]) -> list[tuple[Any, Any]]:
    """Every cell with what makes its case, in one order: a variant's precisions stand together."""
    from amp_probe.probes import ALL
    from amp_probe.suite import plan

    makes = {(probe.name, variant): probe.make for probe in ALL for variant in probe.variants}
    precisions = [p for p in PRECISIONS if p != "tf32" or device.startswith("cuda")]
    specs = plan((probe for probe in ALL if not probe.alone), "core", globs, precisions)
    return [(spec, makes[spec.probe, spec.variant]) for spec in specs]


def _run(make: Any, cell: str, lab: Any) -> None:
    """Run one cell, unless it only times."""
    from amp_probe import precisions, session
    from amp_probe.case import Op, Script, Training
    from amp_probe.harness.op import run_op
    from amp_probe.harness.recorder import Stopped
    from amp_probe.harness.script import run_script
    from amp_probe.harness.training import run_training

    session.seed(cell)
    case = make(lab.draw)
    run = {Op: run_op, Script: run_script, Training: run_training}.get(type(case))
    with suppress(Stopped), precisions.hold(lab.precision):
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


def surveyed(level: str, arguments: Sequence[str]) -> list[Record]:
    """Every record of a level. A cell that ends its process is a record too, and the next process goes on after it."""
    records: list[Record] = []
    environ = os.environ | dict([level.split("=")] if level else [])
    while True:
        first = records[-1]["place"] + 1 if records else 0
        command = [sys.executable, __file__, *arguments, "--from", str(first)]
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


def present(records: Iterable[Record]) -> list[str]:
    """The precisions that were measured, in their order."""
    found = {r["precision"] for r in records}
    return [precision for precision in PRECISIONS if precision in found]


def spread(values: Sequence[float]) -> str:
    """Median, 99th percentile and maximum, as cells of a table."""
    if len(values) < 2:
        return "- | - | -"
    most = statistics.quantiles(values, n=100, method="inclusive")[98]
    return f"{statistics.median(values):.2f} | {most:.2f} | {max(values):.2f}"


def unflagged(records: Sequence[Record]) -> None:
    """For every precision and tier: how near the tensors of unflagged cells come to their limits."""
    print("\nShares of the limits in unflagged cells (1 is the limit): median, 99th percentile, largest.\n")
    print(
        "| precision | tier | runs | flagged | tensors | n | n 99% | n most | s | s 99% | s most | n_ideal most, eps |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for tier in ("essential", "stress"):
        for precision in present(records):
            group = [r for r in records if r["tier"] == tier and r["precision"] == precision]
            good = [r for r in group if r["status"] == "ok"]
            tensors = [t for r in good for t in r["tensors"]]
            ideal = max((t["n_ideal"] for t in tensors if "n_ideal" in t), default=None)
            counts = f"{len(group)} | {sum(r['status'] not in FINE for r in group)} | {len(tensors)}"
            most = "-" if ideal is None else f"{ideal:.2f}"
            near = f"{spread(shares(good, 'n'))} | {spread(shares(good, 's'))}"
            print(f"| {precision} | {tier} | {counts} | {near} | {most} |")


def by_level(records: Sequence[Record]) -> None:
    """For every level: the largest shares in unflagged essential cells."""
    print("\nThe largest share of the limits of n / s in unflagged essential cells, by level.\n")
    precisions = present(records)
    print(f"| level | {' | '.join(precisions)} |\n|---|{'---|' * len(precisions)}")
    good = [r for r in records if r["tier"] == "essential" and r["status"] == "ok"]
    for level in dict.fromkeys(r["level"] for r in records):
        row = []
        for precision in precisions:
            own = [r for r in good if r["level"] == level and r["precision"] == precision]
            most = [max(near) for number in "ns" if (near := shares(own, number))]
            row.append(" / ".join(f"{share:.2f}" for share in most) or "-")
        print(f"| {level} | {' | '.join(row)} |")


def trained(records: Sequence[Record]) -> None:
    """For every precision: the lowest and the highest of what unflagged trainings are judged by as a whole."""
    names = ("cosine", "ratio_low", "ratio_high", "fall")
    print("\nWhole trainings that are not flagged, beside float64's: lowest to highest.\n")
    print(f"| precision | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    right = [r for r in records if r["cell"].startswith("train.") and r["status"] == "ok"]
    for precision in present(records):
        good = [r["numbers"] for r in right if r["precision"] == precision]
        seen = [sorted(numbers[name] for numbers in good if name in numbers) for name in names]
        print(f"| {precision} | {' | '.join(f'{v[0]:.4f} to {v[-1]:.4f}' if v else '-' for v in seen)} |")


def flagged(records: Sequence[Record], seeds: int) -> None:
    """Every flagged cell: at which levels, for how many seeds there, and the reason of the first."""
    print(f"\nFlagged cells: at which levels, and for how many of {seeds} seeds there (the first is the one in use).\n")
    print("| cell | tier | status | levels | a reason |\n|---|---|---|---|---|")
    everywhere = list(dict.fromkeys(r["level"] for r in records))
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for r in records:
        if r["status"] not in FINE:
            groups[r["cell"], r["tier"], r["status"]].append(r)
    for (cell, tier, status), group in groups.items():
        counts = {level: sum(r["level"] == level for r in group) for level in everywhere}
        where = ", ".join(f"{level} ({count})" for level, count in counts.items() if count)
        if len(set(counts.values())) == 1:
            where = f"every level ({len(group) // len(everywhere)})"
        reason = " ".join(group[0]["reason"].replace("|", "/").split())
        print(f"| `{cell}` | {tier} | {status} | {where} | {reason[:110]} |")


def main() -> None:
    """Measure every level, one after the other, and print the tables."""
    parser = argparse.ArgumentParser(description="Print how near right cells come to the limits of docs/numerics.md.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--probe", action="append", default=[], metavar="GLOB", help="only these, as in amp-probe run")
    parser.add_argument("--level", action="append", help="only this level, as NAME=VALUE ('' is the default)")
    parser.add_argument("--save", help="write every record to this file too, one JSON object a line")
    parser.add_argument("--from", type=int, dest="first", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.first is not None:
        for record in measured(asked.device, asked.seeds, asked.probe, asked.first):
            print(json.dumps(record), flush=True)
        return
    levels = asked.level if asked.level is not None else LEVELS if asked.device == "cpu" else ("",)
    records = [r for level in levels for r in surveyed(level, sys.argv[1:])]
    if asked.save:
        with open(asked.save, "w", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(r)}\n" for r in records)
    unflagged(records)
    by_level(records)
    trained(records)
    flagged(records, asked.seeds)


if __name__ == "__main__":
    main()
