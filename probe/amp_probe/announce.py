"""What a cell says of its stages while it runs, as lines between a worker and the main process."""

from __future__ import annotations

from collections.abc import Sequence

from amp_matrix import codec
from amp_matrix.survey import Stage

BEGIN, END = b"B", b"E"
"""A line begins with one of these: a stage's name follows, or a finished stage."""


def where_it_ended(finished: Sequence[Stage], running: str) -> str:
    """The name of the stage that a dead worker's cell was in, or of the place between stages."""
    return running or (f"after {finished[-1].name}" if finished else "start")


def read_announced(announced: Sequence[bytes]) -> tuple[tuple[Stage, ...], str]:
    """The stages a worker finished, and the name of the one that was running ("" where none was)."""
    finished: list[Stage] = []
    running = ""
    for line in announced:
        if line[:1] == BEGIN:
            running = line[1:].decode()
        else:
            finished.append(codec.decode_stage(line[1:]))
            running = ""
    return tuple(finished), running
