"""Baseline files: the cells that failed when a project began to watch, so that only new ones close the gate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from amp_matrix import cell_id, faults
from amp_matrix.codec import FORMAT, LIMIT
from amp_matrix.faults import DocumentError, Fault
from amp_matrix.kinds import KINDS, hint
from amp_matrix.rules import shown


class BaselineError(DocumentError):
    """A baseline that cannot be read: every fault, each with its place in the file."""


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format: Literal[1] = 1
    cells: tuple[str, ...]


def decode(data: bytes, source: str) -> tuple[str, ...]:
    """The ids in a baseline, sorted, each once: `cuda/op.gelu@bf16-mixed`. BaselineError with every fault."""
    if len(data) > LIMIT:
        raise BaselineError(source, [Fault("$", f"is larger than {LIMIT // 2**20} MiB")])
    try:
        plain = faults.parse(data)
    except ValueError as error:
        raise BaselineError(source, [Fault("$", str(error))]) from None
    if found := [*_head(plain), *_ids(plain)]:
        raise BaselineError(source, found)
    return tuple(sorted(set(plain["cells"])))


def encode(cells: Iterable[str]) -> bytes:
    """A baseline of these ids: one a line, sorted, so that a change of it reads well."""
    document = _Document(cells=tuple(sorted(set(cells))))
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _head(plain: Any) -> list[Fault]:
    """What is wrong with the document apart from its ids."""
    number = plain.get("format") if isinstance(plain, dict) else None
    if type(number) is int and number > FORMAT:
        newer = f"format {shown(number)} is newer than this amp-probe reads ({FORMAT}); upgrade amp-probe"
        return [Fault("$.format", newer)]
    missing = [Fault("$.format", "is missing")] if isinstance(plain, dict) and "format" not in plain else []
    return missing + list(faults.find_in(plain, _Document))


def _ids(plain: Any) -> Iterator[Fault]:
    cells = plain.get("cells") if isinstance(plain, dict) else None
    texts = enumerate(cells if isinstance(cells, list) else [])
    wrong = ((i, _wrong(text)) for i, text in texts if isinstance(text, str))
    for count, (i, message) in enumerate((i, m) for i, m in wrong if m):
        if count == faults.MOST:
            return
        yield Fault(f"$.cells[{i}]", message)


def _wrong(text: str) -> str:
    """What is wrong with an id in a baseline, or ""."""
    kind, slash, cell = text.partition("/")
    if not slash:
        return f"{shown(text)} names no kind of device; write cpu/op.softmax@bf16-mixed"
    if kind not in KINDS:
        return f"unknown kind of device {shown(kind)}; {hint(kind[:60])}"
    return "" if _is_cell(cell) else f"{shown(cell)} is not a cell id; write probe[variant]@precision"


def _is_cell(text: str) -> bool:
    try:
        return cell_id.parse(text).device == ""
    except ValueError:
        return False
