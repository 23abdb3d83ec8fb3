"""The journal of one run on one device: every outcome as it came, so that a killed run can go on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from amp_matrix import codec
from amp_matrix.survey import Cell, Environment


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a journal belongs to. `plan` is a hash of the cells to run; `started` is UTC, ISO 8601."""

    plan: str
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
    try:
        path.write_bytes(msgspec.json.encode(header) + b"\n")
        return Journal(path, header, {}, lock)
    except OSError:
        lock.release()
        raise


def resume(folder: Path, wanted: Header) -> Journal | None:
    """The newest unlocked journal of the same run, its torn last line cut off, or None.

    The same run has the same plan and device, and an environment whose identity and scoped fields are equal: what was
    measured under other settings must not be taken for what these would give.
    """
    for path in sorted(folder.glob("*.jsonl"), reverse=True) if folder.is_dir() else ():
        if not path.is_file():  # a pipe would be waited for
            continue
        lock = FileLock(f"{path}.lock", timeout=0)
        try:
            lock.acquire()
        except (Timeout, OSError):
            continue
        try:
            found = _read(path)
            if found is not None and _same_run(found[0], wanted):
                return Journal(path, found[0], found[1], lock)
        except OSError:  # gone since it was listed, or not to be read: not this run's
            pass
        lock.release()
    return None


def _same_run(found: Header, wanted: Header) -> bool:
    return (found.plan, found.device, found.environment.identity, found.environment.scoped) == (
        wanted.plan,
        wanted.device,
        wanted.environment.identity,
        wanted.environment.scoped,
    )


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
