"""Every way a job can break its worker: the job gets its kind of answer, and the next one is not touched."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from fault_lab import job, runs, value, wait

from amp_probe.isolate import Answer, Pool

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc to see what is left running")

CASES = [
    ("segfault", None, "crash", "signal SIGSEGV: assertion failed: a is b"),
    ("abort", None, "crash", "signal SIGABRT"),
    ("illegal", None, "crash", "signal SIGILL"),
    ("exit_now", 0, "crash", "exited with 0 before it answered"),
    ("exit_now", 1, "crash", "exited with 1 before it answered"),
    ("sys_exit", None, "raised", "SystemExit: 0"),
    ("interrupt", None, "raised", "KeyboardInterrupt"),
    ("odd", None, "raised", "Odd: odd"),
    ("mute", None, "raised", "Mute"),
    ("unserializable", None, "raised", "TypeError: a reply's body must be bytes, not function"),
    ("no_reply", None, "raised", "TypeError: a reply's body must be bytes, not str"),
    ("huge", None, "raised", "over the limit"),
    ("loop", None, "timeout", "no answer in 0.3 s"),
    ("hold_gil", None, "timeout", "no answer in 0.3 s"),
    ("block_signals", None, "timeout", "no answer in 0.3 s"),
    ("close_all", None, "crash", "lost its connection"),
    ("scribble", None, "crash", "the worker sent bytes that are no message"),
    ("scribble_little", None, "crash", "the worker sent bytes that are no message"),
    ("allocate_shared", None, "crash", "out of memory"),
    ("escape_then_die", None, "crash", "exited with 3"),
    ("flood", None, "crash", "announcements of more than"),
]
SLOW = {"loop": 0.3, "hold_gil": 0.3, "block_signals": 0.3}


def among_innocents(pool: Pool, name: str, argument: Any) -> Answer:
    """The answer of one job between two others, which must be as if it were not there."""
    jobs = [job("echo", "before"), job(name, argument, SLOW.get(name, 20.0)), job("echo", "after")]
    answers = sorted(pool.run(jobs), key=lambda a: a.index)
    assert [a.index for a in answers] == [0, 1, 2]
    assert value(answers[0]) == "before"
    assert value(answers[2]) == "after"
    assert answers[0].notes == answers[2].notes == ()
    return answers[1]


@pytest.mark.parametrize(("name", "argument", "kind", "detail"), CASES)
def test_a_fault_costs_its_own_job_alone(shared_pool: Pool, name: str, argument: Any, kind: str, detail: str) -> None:
    answer = among_innocents(shared_pool, name, argument)
    assert (answer.kind, answer.body) == (kind, b"")
    assert detail in answer.detail


def test_allocation_without_end_raises_where_workers_are_forked(shared_pool: Pool) -> None:
    answer = among_innocents(shared_pool, "allocate", None)
    assert answer.kind == ("raised" if shared_pool.forks else "crash")  # type: ignore[attr-defined]
    assert ("MemoryError" if answer.kind == "raised" else "out of memory") in answer.detail


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("leave_thread", "python_threads"),
        ("leave_spinning", "python_threads"),
        ("leave_environ", "environ LEFT_BEHIND"),
        ("leave_cwd", "cwd"),
        ("leave_flag", "flag"),
        ("leave_timer", "timer"),
        ("child", "child_processes"),
    ],
)
def test_what_a_job_leaves_changed_is_named_and_the_worker_replaced(shared_pool: Pool, name: str, changed: str) -> None:
    before, left, after = shared_pool.run([job("pid"), job(name), job("pid")])
    assert left.kind == "done"
    assert left.notes == (f"left changed: {changed}; the worker was replaced",)
    assert value(before) != value(after)


@pytest.mark.parametrize("name", ["joined_threads", "sys_exit", "odd", "huge", "suspect_fine", "fork_and_raise"])
def test_a_job_that_leaves_nothing_behind_keeps_its_worker(shared_pool: Pool, name: str) -> None:
    before, fault, after = shared_pool.run([job("pid"), job(name), job("pid")])
    assert fault.notes == ()
    assert value(before) == value(after)


def test_a_forked_copy_of_the_worker_does_not_answer(shared_pool: Pool) -> None:
    answer = among_innocents(shared_pool, "fork", None)
    assert value(answer) == "worker"
    assert answer.announced == ()


def test_a_child_in_a_session_of_its_own_is_killed(shared_pool: Pool) -> None:
    answer = among_innocents(shared_pool, "escape", None)
    assert wait(lambda: not runs(value(answer)), 1.0)


def test_a_gigabyte_of_output_takes_seconds(shared_pool: Pool) -> None:
    start = time.monotonic()
    assert value(among_innocents(shared_pool, "print_lots", 1024)) == 1024
    assert time.monotonic() - start < 15


def test_what_was_announced_before_the_death_is_kept(shared_pool: Pool) -> None:
    for fault, kind in (("segfault", "crash"), ("exit_now", "crash"), ("loop", "timeout"), ("odd", "raised")):
        jobs = [job("announce_then", ("echo", 1)), job("announce_then", (fault, 0), 0.3), job("echo", 1)]
        before, answer, after = shared_pool.run(jobs)
        assert (answer.kind, answer.announced) == (kind, (b"one", b"two"))
        assert before.announced == (b"one", b"two")
        assert after.announced == ()


def test_a_worker_that_dies_after_its_answer_keeps_the_answer(shared_pool: Pool) -> None:
    answer = among_innocents(shared_pool, "die_later", None)
    assert value(answer) == "answered"
    assert answer.notes == ("the worker died after this: signal SIGABRT",)


def test_the_death_of_a_keeper_costs_its_job_alone(shared_pool: Pool) -> None:
    if not shared_pool.forks:  # type: ignore[attr-defined]
        pytest.skip("there is no keeper: the parent is this process")
    assert among_innocents(shared_pool, "kill_keeper", None).kind == "crash"


def test_crashes_one_after_another(shared_pool: Pool) -> None:
    answers = list(shared_pool.run([job("segfault"), job("abort"), job("exit_now", 0)] * 3 + [job("echo", 5)]))
    assert [a.index for a in answers] == list(range(10))
    assert {a.kind for a in answers[:9]} == {"crash"}
    assert value(answers[9]) == 5
