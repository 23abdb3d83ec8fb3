"""What another process would see: an answer from one that has done nothing yet, and a state saved and loaded."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from typing import Any

import torch

from amp_matrix.survey import Status
from amp_probe.harness.recorder import Fault

_PATIENCE = 60.0


def answer(function: str, *args: str) -> str:
    """What `module:function` gives for some texts in a new process, as text; Fault(not_run) where that process failed.

    It is started by a worker and ends with it: a worker's children are killed with the worker.
    """
    module, _, name = function.partition(":")
    code = f"import sys; from {module} import {name} as f; print(f(*sys.argv[1:]))"
    command = [sys.executable, "-W", "ignore", "-c", code, *args]
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_PATIENCE, check=False, env=surroundings, cwd=os.sep
    )
    if done.returncode:
        raise Fault(Status.NOT_RUN, f"the new process ended with {done.returncode}", "fresh_process")
    return done.stdout.strip()


def reloaded(state: dict[str, Any]) -> dict[str, Any]:
    """A state_dict through torch.save and torch.load (weights only), in memory."""
    saved = io.BytesIO()
    torch.save(state, saved)
    saved.seek(0)
    loaded: dict[str, Any] = torch.load(saved, weights_only=True)
    return loaded
