"""What isolation costs: a crash and the next job, a tiny job, the first worker. Times in seconds."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from amp_probe.isolate import Job, Pool, Spec
from amp_probe.session import torch_state
from amp_probe.worker import Reply

TINY, CRASH = b"tiny", b"crash"


class Session:
    """Runs a product of 8 x 8 matrices, or dies."""

    def run(self, payload: bytes, announce: Callable[[bytes], None]) -> Reply:
        if payload == CRASH:
            os.abort()
        return Reply(tiny(), suspect=False)

    def canary(self) -> str:
        a = torch.full((64, 64), 2.0)
        return "" if bool(((a @ a) == 256.0).all()) else "a product of ones and twos is wrong"

    def fingerprint(self) -> dict[str, str]:
        return torch_state()


class Unguarded(Session):
    """The same, without torch's state in the guard."""

    def fingerprint(self) -> dict[str, str]:
        return {}


def tiny() -> bytes:
    """A job that costs next to nothing."""
    a = torch.ones(8, 8)
    return str(float((a @ a).sum())).encode()


def open_session(argument: bytes) -> Session:
    """The entry of the workers: one thread, as the real session has it."""
    torch.set_num_threads(1)
    return Unguarded() if argument == b"unguarded" else Session()


def pool(fork: bool = True, argument: bytes = b"") -> Pool:
    """A pool of one worker that runs Session."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, "PYTHONPATH": path}
    return Pool(Spec("isolation:open_session", argument=argument, fork=fork, environ=environ))


def crash_cost(fork: bool = True, repeats: int = 20) -> float:
    """From handing out a job that crashes to the answer of the job after it; the median of some pairs."""
    pair = [Job(CRASH, 10.0), Job(TINY, 10.0)]
    with pool(fork) as workers:
        list(workers.run([Job(TINY, 10.0)]))
        if not fork:
            time.sleep(5.0)  # the spare is still importing torch
        return _median(lambda: list(workers.run(pair)), repeats if fork else 1)


def tiny_cost(argument: bytes = b"", jobs: int = 2000) -> float:
    """A tiny job in a streamed batch, guard included unless the argument is b"unguarded"."""
    with pool(argument=argument) as workers:
        list(workers.run([Job(TINY, 10.0)]))
        return _median(lambda: list(workers.run([Job(TINY, 10.0)] * jobs)), 3) / jobs


def direct_cost(jobs: int = 2000) -> float:
    """The same job, called."""
    torch.set_num_threads(1)
    tiny()
    return _median(lambda: [tiny() for _ in range(jobs)], 3) / jobs


def first_worker(fork: bool = True) -> float:
    """From making a pool to its first answer, in the multiple of a bare `import torch` that is printed beside it."""

    def first() -> None:
        with pool(fork) as workers:
            next(iter(workers.run([Job(TINY, 10.0)])))

    return _median(first, 3)


def _median(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Measure every part and print a line each."""
    bare = _median(lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True), 3)
    print(f"bare import torch                    {bare:8.2f} s")
    for fork, name in ((True, "fork"), (False, "spawn")):
        print(f"first worker and its end, {name:<10} {first_worker(fork):8.2f} s")
        print(f"a crash and the next job, {name:<10} {crash_cost(fork) * 1000:8.1f} ms")
    print(f"a tiny job, called                   {direct_cost() * 1e3:8.3f} ms")
    print(f"a tiny job in a worker               {tiny_cost() * 1e3:8.3f} ms")
    print(f"    without torch's state in guard   {tiny_cost(b'unguarded') * 1e3:8.3f} ms")


if __name__ == "__main__":
    main()
