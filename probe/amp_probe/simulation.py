"""A survey of a kind of device that is not here: autocast's policy from fake tensors, with no status."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import TypeVar

import msgspec

from amp_matrix import codec
from amp_matrix.store import Store, StoreError
from amp_matrix.survey import Cell, Outcome, Stage, Survey
from amp_matrix.version import __version__
from amp_probe.announce import read_announced, where_it_ended
from amp_probe.isolate import Answer, Job, Pool
from amp_probe.isolate import Spec as WorkerSpec
from amp_probe.request import CaptureSimulated, ListCells, Request, Setting, Simulate, Spec
from amp_probe.run import Options, Progress, RunError

DEVICES = {"mps": "mps", "cuda": "cuda:0", "xpu": "xpu:0"}
"""The kinds that can be simulated, and the device that each stands for in a document."""
PROBE = "autocast.policy"
_SECONDS = 60.0
T = TypeVar("T")


def simulate(kind: str, options: Options, progress: Progress) -> Survey:
    """Ask workers for the policy of a kind of device in every mixed precision that was asked for, and store it.

    A worker that a fake tensor kills costs its cell's answer and no more. RunError where no mixed precision was asked
    for, or the workers cannot be asked at all.
    """
    started, begun = time.perf_counter(), datetime.now(timezone.utc)
    setting = msgspec.msgpack.encode(Setting("cpu", options.modules))
    worker = WorkerSpec("amp_probe.session:open_session", setting, fork=sys.platform == "linux")
    with Pool(worker) as pool:
        wanted = ListCells("full", (PROBE,), options.precisions, options.timeout)
        specs = msgspec.msgpack.decode(_body(pool, wanted), type=tuple[Spec, ...])
        if not specs:
            raise RunError("only mixed precisions have a policy to simulate: ask for bf16-mixed or fp16-mixed")
        environment = codec.decode_environment(_body(pool, CaptureSimulated(kind)))
        progress.started(DEVICES[kind], len(specs))
        cells = tuple(_cells(pool, kind, specs, progress))
    survey = Survey(
        tool=__version__,
        device=DEVICES[kind],
        suite="simulated",
        started=begun.strftime("%Y-%m-%dT%H:%M:%SZ"),
        seconds=time.perf_counter() - started,
        environment=environment,
        cells=cells,
    )
    try:
        Store(options.store).add(survey)
    except StoreError as error:
        progress.warned(f"the survey was not stored: {error}")
    progress.finished(survey)
    return survey


def outcome_of(answer: Answer) -> Outcome:
    """What an answer says of the policy; a worker that died says where it did, and has no status either."""
    if answer.kind == "done":
        return codec.decode_outcome(answer.body)
    finished, running = read_announced(answer.announced)
    place = where_it_ended(finished, running)
    last = Stage(name=place, status=None, reason=answer.detail, code=answer.kind, seconds=answer.seconds)
    return Outcome(status=None, reason=answer.detail, code=answer.kind, stage=last.name, stages=(*finished, last))


def _cells(pool: Pool, kind: str, specs: Sequence[Spec], progress: Progress) -> Iterator[Cell]:
    jobs = [Job(msgspec.msgpack.encode(Simulate(kind, spec.precision)), spec.timeout) for spec in specs]
    for answer in pool.run(jobs):
        spec = specs[answer.index]
        cell = spec.cell(outcome_of(answer), evidence="simulated")
        progress.cell(cell)
        yield cell


def _body(pool: Pool, request: Request) -> bytes:
    (answer,) = pool.run([Job(msgspec.msgpack.encode(request), _SECONDS)])
    if answer.kind != "done":
        raise RunError(answer.detail)
    return answer.body
