"""Ctrl-C and kill -9 of the main process, in the middle of the worst jobs: nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from fault_lab import HERE, Lab, job, runs, value, wait

MAIN = """
import sys
from amp_probe.isolate import Pool, Spec
from fault_lab import job
name, fork, workers, timeout = sys.argv[1], sys.argv[2] == "fork", int(sys.argv[3]), float(sys.argv[4])
spec = Spec("fault_session:open_session", fork=fork, preload=("fault_session",))
with Pool(spec, workers) as pool:
    jobs = [job("echo", 1), job("escape_and", name, timeout)] * workers if name != "idle" else [job("echo", 1)] * 4
    for answer in pool.run(jobs):
        print(answer.index, flush=True)
    print("done", flush=True)
    if name == "idle":
        sys.stdin.read()
"""
MODES = pytest.mark.parametrize("mode", ["fork", "spawn"])
HANGS = pytest.mark.parametrize("name", ["hold_gil", "block_signals", "loop", "idle"])


def start(lab: Lab, name: str, mode: str, workers: int = 2, timeout: float = 30.0) -> subprocess.Popen[str]:
    """A main process whose workers are in the middle of a hang, each with a child in a session of its own."""
    command = [sys.executable, "-c", MAIN, name, mode, str(workers), str(timeout)]
    environ = lab.environ(PYTHONPATH=os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])]))
    main = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert main.stdout is not None
    for line in main.stdout:
        if line == "done\n" or name != "idle":
            break
    escaped = workers if name != "idle" else 0
    assert wait(lambda: len(sleepers(lab)) >= escaped, 20)
    return main


def sleepers(lab: Lab) -> list[int]:
    """The children that jobs started in sessions of their own."""

    def command(pid: int) -> bytes:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                return file.read()
        except OSError:
            return b""

    return [p for p in lab.processes() if command(p).startswith(b"sleep\0")]


@MODES
@HANGS
def test_kill_9_of_the_main_process_ends_every_worker_within_a_second(lab: Lab, name: str, mode: str) -> None:
    with start(lab, name, mode) as main:
        spawned = sleepers(lab)
        main.kill()
        main.wait()
        assert wait(lambda: set(lab.processes()) <= (set(spawned) if mode == "spawn" else set()), 1.0)
    for pid in set(lab.processes()) & set(spawned):
        os.kill(pid, signal.SIGKILL)  # without a zygote nobody is left to do it
    assert lab.gone_in(1.0)


@MODES
@HANGS
def test_ctrl_c_leaves_no_process(lab: Lab, name: str, mode: str) -> None:
    with start(lab, name, mode) as main:
        main.send_signal(signal.SIGINT)
        assert main.wait(10) == -signal.SIGINT  # as Python ends by an uncaught KeyboardInterrupt
        assert lab.gone_in(1.0)


def test_a_pool_outlives_the_thread_that_first_used_it(lab: Lab) -> None:
    """The system ends workers with the thread that started them; the next batch must not notice."""
    with lab.pool() as pool:
        thread = threading.Thread(target=lambda: list(pool.run([job("echo", 1)])))
        thread.start()
        thread.join()
        assert lab.gone_in(5.0)
        assert [value(a) for a in pool.run([job("echo", 2), job("echo", 3)])] == [2, 3]


@MODES
def test_close_ends_jobs_in_the_middle(lab: Lab, mode: str) -> None:
    with lab.pool(mode == "fork") as pool:
        batch = pool.run([job("echo", 1), job("escape_and", "hold_gil")])
        next(batch)
        assert wait(lambda: len(sleepers(lab)) == 1, 5.0)
    assert lab.processes() == []


def test_the_last_resort_ends_an_orphan_that_nothing_else_ends(lab: Lab) -> None:
    """Where the system cannot end workers with their parent (macOS), a timer in the worker does."""
    with start(lab, "hold_gil_unwatched", "spawn", workers=1, timeout=2.0) as main:
        main.kill()
        main.wait()
        for pid in sleepers(lab):
            os.kill(pid, signal.SIGKILL)
        assert [p for p in lab.processes() if runs(p)] != []
        assert lab.gone_in(7.0)
