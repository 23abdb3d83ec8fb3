"""Frames: whatever is cut into pieces is whole again, and whatever is damaged is never believed."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_probe.wire import (
    LIMIT,
    Begin,
    Check,
    Done,
    Failed,
    Garbage,
    Open,
    Reader,
    Ready,
    Said,
    State,
    Task,
    frame,
    from_worker,
    to_worker,
)

SAID = [
    Ready(),
    Begin(3, 1.5),
    Said(3, b"stage"),
    Done(3, False, b"\x00\xff", "", 0.25),
    State(("cwd",), ""),
    Failed("why"),
]
ASKED = [Open("a:b", b"x", None), Task(0, b"payload", 10.0), Check()]


@pytest.mark.parametrize(("messages", "decoder"), [(SAID, from_worker), (ASKED, to_worker)])
def test_messages_come_back_equal(messages: list[Any], decoder: Any) -> None:
    reader = Reader(decoder)
    reader.feed(b"".join(frame(m) for m in messages))
    assert list(reader.messages()) == messages
    assert list(reader.messages()) == []


@given(st.lists(st.integers(1, 20), min_size=1))
def test_any_pieces_give_the_same_messages(sizes: list[int]) -> None:
    data, reader, seen = b"".join(frame(m) for m in SAID), Reader(from_worker), []
    while data:
        for size in sizes:
            reader.feed(data[:size])
            seen += list(reader.messages())
            data = data[size:]
    assert seen == SAID


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_one_changed_byte_is_never_believed(place: int, change: int) -> None:
    data = bytearray(frame(Said(3, b"what a stage says")))
    data[place % len(data)] ^= change
    reader = Reader(from_worker)
    reader.feed(bytes(data))
    with contextlib.suppress(Garbage):
        assert list(reader.messages()) == []  # a length that waits for more


@given(st.binary(min_size=12))
def test_garbage_after_a_message_costs_only_what_follows(garbage: bytes) -> None:
    reader = Reader(from_worker)
    reader.feed(frame(Ready()) + b"!" + garbage)
    messages = reader.messages()
    assert next(messages) == Ready()
    with pytest.raises(Garbage):
        next(messages)


def test_a_message_of_the_other_side_is_garbage() -> None:
    reader = Reader(from_worker)
    reader.feed(frame(Check()))
    with pytest.raises(Garbage, match="cannot be read"):
        list(reader.messages())


def test_what_is_too_large_is_refused_on_both_sides() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        frame(Said(1, bytes(LIMIT + 1)))
    reader = Reader(from_worker)
    reader.feed(frame(Ready())[:4] + (LIMIT + 1).to_bytes(4, "big") + bytes(4))
    with pytest.raises(Garbage, match="over the limit"):
        list(reader.messages())
