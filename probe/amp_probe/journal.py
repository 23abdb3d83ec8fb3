"""The journal of one run on one device: every outcome as it came, so that a killed run can go on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from amp_matrix import codec
from amp_matrix.survey import Cell, Environment


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a journal belongs to. Two headers with equal `plan` and `identity` are the same run's."""

    plan: str
    identity: str
    device: str
    suite: str
    started: str
    tool: str
    environment: Environment


class Journal:
    """An open, locked journal. `done` holds the cells it already had."""

    def __init__(self, path: Path, header: Header, done: dict[str, Cell], lock: FileLock) -> None:
        self._path, self._lock = path, lock
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.header, self.done = header, done

    def append(self, cell: Cell) -> None:
        """Write one cell as one line, in one write; OSError where the disk refuses it."""
        line = codec.encode_cell(cell) + b"\n"
        written = os.write(self._fd, line)
        while written < len(line):
            written += os.write(self._fd, line[written:])

    def close(self, *, remove: bool) -> None:
        """Let go of the file, and delete it once its survey is stored."""
        os.close(self._fd)
        if remove:
            self._path.unlink(missing_ok=True)
        self._lock.release()
        if remove:
            Path(self._lock.lock_file).unlink(missing_ok=True)


def create(folder: Path, name: str, header: Header) -> Journal:
    """A new journal `name`.jsonl in the folder, locked; OSError where it cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    lock = FileLock(f"{path}.lock", timeout=0)
    lock.acquire()
    journal = Journal(path, header, {}, lock)
    os.write(journal._fd, msgspec.json.encode(header) + b"\n")
    return journal


def resume(folder: Path, plan: str, identity: str) -> Journal | None:
    """The newest unlocked journal of the same plan and identity, its torn last line cut off, or None."""
    for path in sorted(folder.glob("*.jsonl"), reverse=True) if folder.is_dir() else ():
        lock = FileLock(f"{path}.lock", timeout=0)
        with contextlib.suppress(Timeout):
            lock.acquire()
            found = _read(path)
            if found is not None and (found[0].plan, found[0].identity) == (plan, identity):
                return Journal(path, found[0], found[1], lock)
            lock.release()
    return None


def _read(path: Path) -> tuple[Header, dict[str, Cell]] | None:
    """The header and cells of a journal, up to the first line that is not whole; the file is cut there."""
    data = path.read_bytes()
    lines = _whole_lines(data)
    try:
        header = msgspec.json.decode(next(lines), type=Header)
    except (StopIteration, msgspec.MsgspecError, ValueError):
        return None
    cells: dict[str, Cell] = {}
    kept = data.index(b"\n") + 1
    for line in lines:
        try:
            cell = codec.decode_cell(line)
        except codec.DocumentError:
            break
        cells[cell.id] = cell
        kept += len(line) + 1
    if kept < len(data):
        os.truncate(path, kept)
    return header, cells


def _whole_lines(data: bytes) -> Iterator[bytes]:
    return iter(data.split(b"\n")[:-1])
