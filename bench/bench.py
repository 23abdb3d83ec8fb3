"""What amp-probe costs, as ratios within one run: absolute times mean little on a shared machine.

Run it with `make bench`. Every part is measured several times and the median is shown, with the goal beside it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PYTHON = sys.executable
IN_ONE_PROCESS = """
import sys, time, msgspec
from amp_probe.request import ListCells, RunCell, Setting, Spec
from amp_probe.session import Session
session = Session(Setting("cpu"))
ask = lambda request: session.run(msgspec.msgpack.encode(request), lambda line: None).body
specs = [s for s in msgspec.msgpack.decode(ask(ListCells({suite!r})), type=tuple[Spec, ...]) if not s.alone]
start = time.perf_counter()
for spec in specs:
    ask(RunCell(spec))
print(time.perf_counter() - start)
"""
IN_A_WORKER = """
import sys, time, msgspec
from amp_probe.isolate import Job, Pool, Spec as WorkerSpec
from amp_probe.request import ListCells, RunCell, Setting, Spec
spec = WorkerSpec(entry="amp_probe.session:open_session", argument=msgspec.msgpack.encode(Setting("cpu")), fork=True)
with Pool(spec) as pool:
    job = lambda request: Job(msgspec.msgpack.encode(request), 60.0)
    (answer,) = pool.run([job(ListCells({suite!r}))])
    specs = [s for s in msgspec.msgpack.decode(answer.body, type=tuple[Spec, ...]) if not s.alone]
    start = time.perf_counter()
    for answer in pool.run([job(RunCell(s)) for s in specs]):
        pass
    print(time.perf_counter() - start)
"""
CRASH = """
import sys
sys.path.insert(0, {here!r})
from isolation import crash_cost
print(crash_cost())
"""
IMPORT_MATRIX = """
import time
start = time.perf_counter()
import amp_matrix
print(time.perf_counter() - start)
"""
CHOOSE = """
import time, torch, amp_matrix, warnings
warnings.simplefilter("ignore")
amp_matrix.choose("cpu", store={store!r})
start = time.perf_counter()
amp_matrix.choose("cpu", store={store!r})
print(time.perf_counter() - start)
"""


def script(code: str) -> float:
    """The seconds that a script measured of itself and printed last."""
    done = subprocess.run([PYTHON, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def wall(*command: str) -> float:
    """The wall seconds of a whole command."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def median(measure: Callable[[], float], repeats: int = 3) -> float:
    """The median of some repeats."""
    return statistics.median(measure() for _ in range(repeats))


def row(what: str, value: str, goal: str) -> None:
    print(f"{what:<62} {value:>12}   {goal}", flush=True)


def main() -> None:
    """Measure every part and print a line each."""
    with tempfile.TemporaryDirectory() as folder:
        report(folder)


def report(folder: str) -> None:
    here = str(Path(__file__).parent)
    os.environ["AMP_PROBE_STORE"] = folder
    probe = (PYTHON, "-m", "amp_probe", "run", "--device", "cpu")
    bare = median(lambda: wall(PYTHON, "-c", "import torch"))
    row("bare import torch", f"{bare:.2f} s", "")
    for suite in ("quick", "core"):
        whole = median(lambda suite=suite: wall(*probe, "--suite", suite), repeats=2)
        row(f"run --suite {suite}, against import torch", f"{whole / bare:.1f} x", f"{whole:.1f} s")
    inside = [script(IN_ONE_PROCESS.format(suite="core")) for _ in range(1)]
    apart = [script(IN_A_WORKER.format(suite="core")) for _ in range(1)]
    for _ in range(2):  # interleaved, so that a busy moment hits both
        inside.append(script(IN_ONE_PROCESS.format(suite="core")))
        apart.append(script(IN_A_WORKER.format(suite="core")))
    share = statistics.median(apart) / statistics.median(inside) - 1
    row("isolation's share of the core run's cells", f"{share * 100:.1f} %", "goal: at most 10 %")
    row("a crash and the next cell", f"{script(CRASH.format(here=here)) * 1000:.1f} ms", "goal: under 30 ms")
    row("import amp_matrix", f"{median(lambda: script(IMPORT_MATRIX), 5) * 1000:.1f} ms", "goal: under 50 ms")
    choose = median(lambda: script(CHOOSE.format(store=folder)), 5)
    row("amp_matrix.choose, torch imported", f"{choose * 1000:.1f} ms", "goal: under 10 ms")


if __name__ == "__main__":
    main()
