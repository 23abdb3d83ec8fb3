"""Labs for the tests of isolation, and the watch that none of their processes outlives a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_lab import Lab

from amp_probe.isolate import Pool


def _lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    left = lab.processes()
    assert left == [], f"left running: {[Path(f'/proc/{p}/cmdline').read_bytes() for p in left]}"


lab = pytest.fixture(_lab, name="lab")
module_lab = pytest.fixture(_lab, scope="module", name="module_lab")


@pytest.fixture(scope="module", params=["fork", "spawn"])
def shared_pool(request: pytest.FixtureRequest, module_lab: Lab) -> Iterator[Pool]:
    """One pool for a module's tests, in each mode: what one job does to it the next test would see."""
    with module_lab.pool(fork=request.param == "fork") as pool:
        pool.forks = request.param == "fork"  # type: ignore[attr-defined]
        yield pool
