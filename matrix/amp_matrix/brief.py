"""Reads a stored survey for `choose` alone: what it never looks at stays unparsed, which makes it ten times faster."""

from __future__ import annotations

import contextlib
import hashlib
from functools import cache

import msgspec

from amp_matrix import codec
from amp_matrix.faults import real
from amp_matrix.rules import RULES, breach
from amp_matrix.survey import Cell, Outcome, Stage, Survey

_RAW = msgspec.Raw()


class _Stage(Stage, frozen=True):
    seconds: msgspec.Raw = _RAW  # type: ignore[assignment]
    dtypes: msgspec.Raw = _RAW  # type: ignore[assignment]
    errors: msgspec.Raw = _RAW  # type: ignore[assignment]
    curves: msgspec.Raw = _RAW  # type: ignore[assignment]


class _Outcome(Outcome, frozen=True):
    seconds: msgspec.Raw = _RAW  # type: ignore[assignment]
    stages: tuple[_Stage, ...] = ()


class _Cell(Cell, frozen=True, kw_only=True):
    outcome: _Outcome


class _Survey(Survey, frozen=True, kw_only=True, weakref=True):
    cells: tuple[_Cell, ...]


def decode(data: bytes, source: str, sha256: str) -> Survey:
    """As codec.decode_named, but seconds and the stages' `dtypes`, `errors` and `curves` mean nothing.

    Raises DocumentError as there. That the bytes are those that were stored, the SHA-256 says; what is read of them is
    checked as ever.
    """
    if hashlib.sha256(data).hexdigest() == sha256 and len(data) <= codec.LIMIT:
        with contextlib.suppress(msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            survey = _decoder().decode(data)
            if not _breaks_rules(survey):
                codec.remember(survey, sha256)
                return survey
    return codec.decode_named(data, source, sha256)


@cache
def _decoder() -> msgspec.json.Decoder[_Survey]:
    return msgspec.json.Decoder(_Survey, dec_hook=real)


def _breaks_rules(survey: Survey) -> bool:
    """Whether any field breaks its rule, as in codec; the rules are those of the whole structs."""
    parts = [(Survey, survey), *((Cell, cell) for cell in survey.cells)]
    return any(breach(type_, field, getattr(part, field)) for type_, part in parts for field in RULES[type_])
