"""What the guard sees of a process."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from amp_probe.guard import drift, process_state


def test_nothing_changed_is_no_drift() -> None:
    assert drift(process_state(), process_state()) == ()


def test_names_of_values_that_differ_come_or_go() -> None:
    assert drift({"a": 1, "b": 2, "c": None}, {"a": 1, "b": 3, "d": None}) == ("b", "c", "d")
    assert drift({"nan": float("nan")}, {"nan": float("nan")}) == ("nan",)


def test_every_kind_of_change_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = process_state()
    monkeypatch.setenv("ADDED", "1")
    monkeypatch.delenv("PATH")
    monkeypatch.chdir(tmp_path)
    old = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        seen = drift(before, process_state())
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        stop.set()
        thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGUSR1, old)
    changed = ("child_processes", "cwd", "environ ADDED", "environ PATH")
    assert seen == (*changed, "python_threads", "signal_handlers", "signal_mask")


def test_a_deleted_directory_is_a_state_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert process_state()["cwd"] == ""
