"""The environment that a worker captures is the one that `choose` will capture, or no evidence would ever count."""

from __future__ import annotations

from amp_matrix.environment import capture, differences
from amp_probe import run


def test_a_worker_and_this_process_see_one_identity() -> None:
    captured, absent = run.capture(("cpu",))
    assert absent == ()
    assert differences(captured["cpu"].identity, capture("cpu").identity) == ()
