"""Pools: order, several workers, canaries, lost devices, closing, and what workers inherit."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fault_lab import HERE, Lab, job, runs, value, wait

from amp_probe import memory, slot
from amp_probe.isolate import Pool, Spec

BOTH = pytest.mark.parametrize("fork", [True, False], ids=["fork", "spawn"])


def test_a_thousand_jobs_come_back_once_each(lab: Lab) -> None:
    with lab.pool() as pool:
        answers = list(pool.run([job("echo", i) for i in range(1000)]))
    assert [(a.index, value(a)) for a in answers] == [(i, i) for i in range(1000)]


def test_no_jobs_no_process(lab: Lab) -> None:
    with lab.pool() as pool:
        assert list(pool.run([])) == []
        assert lab.processes() == []


@BOTH
def test_large_payloads_and_bodies_pass(lab: Lab, fork: bool) -> None:
    text = "x" * (5 << 20)
    with lab.pool(fork, memory=1 << 30) as pool:
        answers = list(pool.run([job("echo", text)] * 4 + [job("large", 60 << 20)]))
    assert [value(a) == text for a in answers[:4]] == [True] * 4
    assert len(answers[4].body) == 60 << 20


def test_seconds_are_the_jobs_own(lab: Lab) -> None:
    with lab.pool() as pool:
        slept, hung = pool.run([job("sleep", 0.2), job("loop", timeout=0.4)])
    assert 0.2 <= slept.seconds < 0.4
    assert 0.4 <= hung.seconds < 0.8


def test_time_runs_from_the_start_of_a_job_not_of_its_batch(lab: Lab) -> None:
    with lab.pool() as pool:
        answers = list(pool.run([job("sleep", 0.15, 0.5)] * 5))
    assert {a.kind for a in answers} == {"done"}


def test_several_workers_work_side_by_side(lab: Lab) -> None:
    with lab.pool(workers=3) as pool:
        list(pool.run([job("echo", 1)] * 3))
        start = time.monotonic()
        answers = list(pool.run([job("sleep", 0.4) for _ in range(3)]))
        assert time.monotonic() - start < 1.0
        pids = {value(a) for a in pool.run([job("pid")] * 50, workers=1)}
    assert {a.kind for a in answers} == {"done"}
    assert len(pids) == 1


def test_faults_of_one_worker_do_not_touch_another(lab: Lab) -> None:
    jobs = [job(name, 0, 0.3) for name in ("segfault", "sleep", "loop", "exit_now", "echo", "close_all")] * 4
    kinds = {"segfault": "crash", "loop": "timeout", "exit_now": "crash", "close_all": "crash"}
    names = ("segfault", "sleep", "loop", "exit_now", "echo", "close_all") * 4
    with lab.pool(workers=3) as pool:
        answers = {a.index: a.kind for a in pool.run(jobs)}
    assert answers == {i: kinds.get(name, "done") for i, name in enumerate(names)}


def test_a_child_that_left_its_workers_session_dies_with_that_worker_alone(lab: Lab) -> None:
    with lab.pool(workers=2) as pool:
        answers = list(pool.run([job("sleep", 0.5), job("escape")]))
        escaped = next(value(a) for a in answers if a.index == 1)
        assert {a.kind for a in answers} == {"done"}
        assert wait(lambda: not runs(escaped), 1.0)


def test_two_pools_at_once_do_not_meet(lab: Lab) -> None:
    with lab.pool() as one, lab.pool() as two, lab.pool(fork=False) as three:
        running = [p.run([job("pid"), job("segfault"), job("pid")]) for p in (one, two, three)]
        first = [next(r) for r in running]
        rest = [list(r) for r in running]
    assert len({value(a) for a in first} | {value(a[-1]) for a in rest}) == 6
    assert [a[0].kind for a in rest] == ["crash"] * 3


def test_a_pool_runs_one_batch_at_a_time_and_none_when_closed(lab: Lab) -> None:
    with lab.pool() as pool:
        batch = pool.run([job("echo", 1)] * 3)
        next(batch)
        with pytest.raises(RuntimeError, match="already running"):
            next(pool.run([job("echo", 2)]))
        batch.close()  # type: ignore[attr-defined]
        assert value(next(pool.run([job("echo", 3)]))) == 3
    with pytest.raises(RuntimeError, match="closed"):
        next(pool.run([job("echo", 1)]))


@BOTH
def test_a_batch_that_is_dropped_leaves_no_job_running(lab: Lab, fork: bool) -> None:
    with lab.pool(fork) as pool:
        batch = pool.run([job("pid"), job("hold_gil"), job("echo", 1)])
        pid = value(next(batch))
        batch.close()  # type: ignore[attr-defined]
        assert wait(lambda: not runs(pid), 1.0)
        assert value(next(pool.run([job("echo", 3)]))) == 3


@BOTH
def test_a_worker_that_died_between_batches_costs_nothing(lab: Lab, fork: bool) -> None:
    with lab.pool(fork) as pool:
        (answer,) = pool.run([job("pid")])
        os.kill(value(answer), 9)
        assert wait(lambda: not runs(value(answer)), 1.0)
        answers = list(pool.run([job("echo", i) for i in range(3)]))
    assert [(a.kind, a.notes) for a in answers] == [("done", ())] * 3


def test_when_everything_is_killed_between_batches_it_starts_anew(lab: Lab) -> None:
    with lab.pool() as pool:
        list(pool.run([job("pid")]))
        doomed = lab.processes()
        assert doomed
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):  # it died with the parent that was killed before it
                os.kill(pid, 9)
        assert wait(lambda: not any(runs(pid) for pid in doomed), 2.0)
        assert [value(a) for a in pool.run([job("echo", i) for i in range(3)])] == [0, 1, 2]


# Canaries and lost devices


def canaries(lab: Lab, *names: str) -> int:
    """How many canaries a worker has run when it gets to a job behind these; one of them when it opened."""
    with lab.pool() as pool:
        return int(value(list(pool.run([*(job(n) for n in names), job("canaries")]))[-1]))


def test_the_canary_runs_after_suspects_and_exceptions_and_every_fifty_jobs(lab: Lab) -> None:
    assert canaries(lab) == 1
    assert canaries(lab, "echo", "echo") == 1
    assert canaries(lab, "suspect_fine") == 2
    assert canaries(lab, "odd", "suspect_fine") == 3
    assert canaries(lab, *["echo"] * 101) == 3


def test_the_canary_runs_at_the_end_of_a_batch(lab: Lab) -> None:
    with lab.pool() as pool:
        (poisoner,) = pool.run([job("quiet_poison")])
        (after,) = pool.run([job("canaries")])
    assert poisoner.kind == "done"
    assert poisoner.notes == ("the canary failed after this: products are wrong; the worker was replaced",)
    assert value(after) == 1


def test_the_job_that_poisoned_keeps_its_answer(lab: Lab) -> None:
    with lab.pool() as pool:
        answers = list(pool.run([job("echo", 1), job("suspect_poison"), job("canaries")]))
    assert [value(a) for a in answers] == [1, "poisoned", 1]
    assert [len(a.notes) for a in answers] == [0, 1, 0]


@BOTH
def test_a_fresh_worker_whose_canary_fails_means_the_device_is_lost(lab: Lab, fork: bool) -> None:
    with lab.pool(fork, argument=b"products are wrong") as pool:
        answers = list(pool.run([job("echo", i) for i in range(3)]))
        (later,) = pool.run([job("echo", 4)])
    assert [a.kind for a in [*answers, later]] == ["lost"] * 4
    assert {a.detail for a in [*answers, later]} == {"the canary failed: products are wrong"}


def test_a_device_lost_on_the_way_keeps_what_was_done(lab: Lab, tmp_path: Path) -> None:
    flag = tmp_path / "lost"
    with lab.pool(entry="fault_session:open_flagged", argument=str(flag).encode()) as pool:
        answers = list(pool.run([job("echo", 1), job("lose", str(flag)), job("echo", 2), job("echo", 3)]))
    assert [a.kind for a in sorted(answers, key=lambda a: a.index)] == ["done", "crash", "lost", "lost"]


@BOTH
def test_a_session_that_cannot_be_opened_loses_all_with_the_reason(lab: Lab, fork: bool) -> None:
    for entry, detail in (
        ("fault_session:open_broken", "ImportError: no module named anything"),
        ("fault_session:absent", "AttributeError"),
        ("no_such_module:open", "ModuleNotFoundError"),
        ("fault_session:open_dead", "no worker can be started: signal SIGABRT"),
    ):
        with lab.pool(fork, entry=entry) as pool:
            answers = list(pool.run([job("echo", 1)] * 2))
        assert [a.kind for a in answers] == ["lost", "lost"]
        assert detail in answers[0].detail


def test_a_canary_that_hangs_is_ended(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot, "SETTLE_SECONDS", 0.5)
    with lab.pool() as pool:
        answers = list(pool.run([job("suspect_hang"), job("echo", 1)]))
    assert [value(a) for a in answers] == ["hanging", 1]
    assert "took over 0.5 s" in answers[0].notes[0]


def test_a_session_that_never_opens_is_lost(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot, "START_SECONDS", 0.5)
    with lab.pool(argument=b"hang") as pool:
        (answer,) = pool.run([job("echo", 1)])
    assert (answer.kind, answer.detail) == ("lost", "no worker can be started: did not open in 0.5 s")


def test_messages_that_a_job_steals_are_sent_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot, "SETTLE_SECONDS", 0.5)
    with lab.pool() as pool:
        jobs = [job("sleep", 0.05), job("steal"), *(job("echo", "x" * (1 << 16)) for _ in range(10))]
        answers = list(pool.run(jobs))
    assert sorted(a.index for a in answers) == list(range(12))
    assert {a.kind for a in answers if a.index != 1} == {"done"}


# What workers inherit


@BOTH
def test_what_a_job_sees(lab: Lab, fork: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("msgspec.py", "trap.py", "suite.py"):
        (tmp_path / name).write_text("raise SystemExit('imported from the current directory')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with lab.pool(fork, environ=lab.environ(GREETING="hello")) as pool:
        look, trap, ours = pool.run([job("look"), job("find", "trap"), job("find", "suite")])
    seen = value(look)
    assert seen["cwd"] == str(tmp_path)
    assert seen["environ"]["GREETING"] == "hello"
    assert seen["stdin"] == ""
    assert seen["session"]
    assert str(tmp_path) not in seen["path"]
    assert "" not in seen["path"]
    assert HERE in seen["path"]
    assert "torch" not in seen["modules"]
    assert (value(trap), value(ours)) == ("absent", "absent")


def test_a_main_script_anywhere_may_find_amp_probe_by_a_changed_path(lab: Lab, tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        f"import sys\nsys.path[1:1] = {[p for p in sys.path if p]!r}\n"
        "from amp_probe.isolate import Pool, Spec\nfrom fault_lab import job, value\n"
        "with Pool(Spec('fault_session:open_session', fork=True, preload=())) as pool:\n"
        "    print(*(value(a) for a in pool.run([job('find', 'amp_matrix'), job('find', 'msgspec')])))\n"
    )
    command = [sys.executable, "-S", str(script)]  # without site, only the script's own path finds anything
    environ = {k: v for k, v in lab.environ().items() if k != "PYTHONPATH"}
    done = subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("found found\n", "")


def test_each_pool_has_its_own_environment(lab: Lab) -> None:
    with lab.pool(environ=lab.environ(WHICH="one")) as one, lab.pool(environ=lab.environ(WHICH="two")) as two:
        seen = [value(next(p.run([job("look")])))["environ"]["WHICH"] for p in (one, two)]
    assert seen == ["one", "two"]


def test_the_zygote_imports_torch_and_the_session_unless_told_otherwise(lab: Lab) -> None:
    with lab.pool(preload=None) as pool:
        (answer,) = pool.run([job("look")])
    assert "torch" in value(answer)["modules"]


def test_nothing_is_left_open_here(lab: Lab) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for fork in (True, False):
        with lab.pool(fork, workers=2) as pool:
            list(pool.run([job("segfault"), job("close_all"), job("leave_cwd"), job("loop", timeout=0.2)]))
    assert descriptors() == before


def test_the_default_budget_is_bounded() -> None:
    assert 512 << 20 <= memory.default_budget(1000) <= memory.default_budget(1) <= 2 << 30
    assert memory.resident(os.getpid()) > 1 << 20
    assert memory.resident(1 << 30) == 0
    assert abs(memory._resident_by_ps(os.getpid()) - memory.resident(os.getpid())) < 8 << 20


def test_forking_is_refused_where_it_is_not_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NotImplementedError, match="forked safely on darwin"):
        Pool(Spec("a:b", fork=True))
    Pool(Spec("a:b")).close()
    monkeypatch.setattr(os, "name", "nt")
    with pytest.raises(NotImplementedError, match="WSL"):
        Pool(Spec("a:b"))
