"""A session answers requests: seeds, state, and probes that fail before they have a case."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
import torch

from amp_matrix import codec
from amp_matrix.survey import Outcome
from amp_probe.announce import read_announced
from amp_probe.request import ListCells, Request, RunCell, Setting, Spec
from amp_probe.session import Session, torch_state


@pytest.fixture
def session() -> Iterator[Session]:
    threads = torch.get_num_threads()
    yield Session(Setting("cpu"))
    torch.set_num_threads(threads)


def spec(probe: str, precision: str = "fp32", variant: str = "base") -> Spec:
    return Spec(probe, variant, precision, "stress", 1, 10.0)


def ask(session: Session, request: Request) -> tuple[bytes, list[bytes]]:
    lines: list[bytes] = []
    return session.run(msgspec.msgpack.encode(request), lines.append).body, lines


def outcome(session: Session, cell: Spec) -> Outcome:
    return codec.decode_outcome(ask(session, RunCell(cell))[0])


def test_stages_are_announced_as_they_end(session: Session) -> None:
    body, lines = ask(session, RunCell(spec("op.softmax", "bf16-mixed")))
    finished, running = read_announced(lines)
    assert finished == codec.decode_outcome(body).stages
    assert running == ""
    assert [s.name for s in finished] == ["build", "infer", "forward", "backward"]


def test_the_same_cell_twice_is_the_same_to_the_bit(session: Session) -> None:
    first, again = (outcome(session, spec("op.softmax", "bf16-mixed")) for _ in range(2))
    assert [s.errors for s in first.stages] == [s.errors for s in again.stages]


def test_an_unknown_probe_is_not_run(session: Session) -> None:
    assert outcome(session, spec("op.nothing")).code == "unknown_probe"


def test_tf32_off_cuda_is_unsupported(session: Session) -> None:
    found = outcome(session, spec("op.matmul", "tf32"))
    assert (found.status, found.code) == ("unsupported", "declared")
    assert "TF32" in found.reason


def test_the_plan_is_given_as_specs(session: Session) -> None:
    body, _ = ask(session, ListCells("quick", ("op.softmax",), ("bf16-mixed",)))
    (found,) = msgspec.msgpack.decode(body, type=tuple[Spec, ...])
    assert (found.id, found.tier) == ("op.softmax@bf16-mixed", "essential")


def test_every_kind_of_left_behind_state_shows_in_the_fingerprint() -> None:
    before = torch_state()
    torch.set_default_dtype(torch.float64)
    torch.set_autocast_enabled("cpu", True)
    try:
        changed = {name for name, value in torch_state().items() if value != before[name]}
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_autocast_enabled("cpu", False)
    assert {"default_dtype", "autocast"} <= changed
    assert torch_state() == before
