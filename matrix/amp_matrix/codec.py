"""Reads and writes documents. What comes in is untrusted; what goes out has one canonical form."""

from __future__ import annotations

import contextlib
import hashlib
import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeVar

import msgspec

from amp_matrix import faults
from amp_matrix.faults import DocumentError, Fault, real
from amp_matrix.rules import RULES, broken, shown
from amp_matrix.survey import Cell, Environment, Outcome, Real, Stage, Survey

__all__ = [
    "FORMAT",
    "LIMIT",
    "DocumentError",
    "Fault",
    "decode",
    "decode_cell",
    "decode_environment",
    "decode_named",
    "decode_outcome",
    "decode_stage",
    "encode",
    "encode_cell",
    "encode_environment",
    "encode_matrix",
    "encode_outcome",
    "encode_stage",
    "json_schema",
    "survey_id",
]

FORMAT = 1
LIMIT = 64 * 2**20
"""The most bytes of one document."""

MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From each older format to the next: takes and gives a whole document as plain values. Format 1 is the first."""

T = TypeVar("T")


class Matrix(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Several surveys in one document."""

    format: Literal[1] = 1
    kind: Literal["matrix"] = "matrix"
    surveys: tuple[Survey, ...]


class _Head(msgspec.Struct):
    """What says how to read a document."""

    format: Any = None
    kind: Any = None


class _Doubt(ValueError):
    """The fast way of reading does not vouch for a document; the slow one says why."""


_KINDS: dict[str, type[Survey] | type[Matrix]] = {"survey": Survey, "matrix": Matrix}
_REFUSALS = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)


def decode(data: bytes, source: str) -> tuple[Survey, ...]:
    """The surveys of a document of either kind; DocumentError with every fault, each placed, and nothing else."""
    if len(data) > LIMIT:
        raise DocumentError(source, [Fault("$", f"is larger than {LIMIT // 2**20} MiB")])
    try:
        return _surveys(_read_fast(data, _type_by_head(data)))
    except _REFUSALS as error:
        return _read_slowly(data, source, str(error))


def encode(survey: Survey) -> bytes:
    """The canonical form: UTF-8 JSON, keys sorted, non-finite floats as text, one newline at its end."""
    return _canonical(survey, Survey) + b"\n"


def encode_matrix(surveys: Iterable[Survey]) -> bytes:
    """One document of several surveys, in the order given."""
    return _canonical(Matrix(surveys=tuple(surveys)), Matrix) + b"\n"


def survey_id(survey: Survey) -> str:
    """The SHA-256 of the canonical form in hex: what `sha256sum` says of the file in the store."""
    kept = _IDS.get(id(survey))
    return kept[1] if kept and kept[0]() is survey else remember(survey, hashlib.sha256(encode(survey)).hexdigest())


def decode_named(data: bytes, source: str, sha256: str) -> Survey:
    """The survey of a file that is named by its id; DocumentError where it is another one, too."""
    if hashlib.sha256(data).hexdigest() == sha256 and len(data) <= LIMIT:
        with contextlib.suppress(*_REFUSALS):
            survey = _read_fast(data, Survey, unique=False)
            remember(survey, sha256)
            return survey
    surveys = decode(data, source)
    if len(surveys) != 1 or survey_id(surveys[0]) != sha256:
        raise DocumentError(source, [Fault("$", "is not the survey that the file's name says: their SHA-256 differ")])
    return surveys[0]


def remember(survey: Survey, sha256: str) -> str:
    """Keep a survey's id for as long as the survey lives, for those who have just hashed its canonical form."""
    key = id(survey)
    _IDS[key] = weakref.ref(survey, lambda _: _IDS.pop(key, None)), sha256
    return sha256


_IDS: dict[int, tuple[weakref.ref[Survey], str]] = {}
"""Hashing a large survey takes longer than `choose` may."""


def encode_cell(cell: Cell) -> bytes:
    """A cell as one line, without a newline; the same form as in a document."""
    return _canonical(cell, Cell)


def decode_cell(data: bytes, source: str = "cell") -> Cell:
    """A cell from its line; DocumentError says what is wrong with it."""
    return _part(data, Cell, source)


def encode_outcome(outcome: Outcome) -> bytes:
    """An outcome as one line."""
    return _canonical(outcome, Outcome)


def decode_outcome(data: bytes, source: str = "outcome") -> Outcome:
    """An outcome from its line; DocumentError says what is wrong with it."""
    return _part(data, Outcome, source)


def encode_stage(stage: Stage) -> bytes:
    """A stage as one line."""
    return _canonical(stage, Stage)


def decode_stage(data: bytes, source: str = "stage") -> Stage:
    """A stage from its line; DocumentError says what is wrong with it."""
    return _part(data, Stage, source)


def encode_environment(environment: Environment) -> bytes:
    """An environment as one line."""
    return _canonical(environment, Environment)


def decode_environment(data: bytes, source: str = "environment") -> Environment:
    """An environment from its line; DocumentError says what is wrong with it."""
    return _part(data, Environment, source)


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of both kinds of document, made from the structs and the rules of their fields."""
    (_, _), parts = msgspec.json.schema_components([Survey, Matrix], schema_hook=_real_schema)
    for type_, fields in RULES.items():
        for field, rule in fields.items():
            parts[type_.__name__]["properties"][field].update(rule.schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"amp-probe survey or matrix, format {FORMAT}",
        "required": ["format", "kind"],
        "oneOf": [{"$ref": "#/$defs/Survey"}, {"$ref": "#/$defs/Matrix"}],
        "$defs": _steady(msgspec.json.decode(msgspec.json.encode(parts))),
    }


def _type_by_head(data: bytes) -> type[Survey] | type[Matrix]:
    head = msgspec.json.decode(data, type=_Head)
    if type(head.format) is not int or head.format != FORMAT or head.kind not in _KINDS:
        raise _Doubt("no such document")
    return _KINDS[head.kind]


def _read_fast(data: bytes, type_: type[T], *, unique: bool = True) -> T:
    """A value that is surely right; any exception of _REFUSALS where it may not be."""
    value = msgspec.json.decode(data, type=type_, dec_hook=real)
    if any(broken(part) for part in _ruled(value)):
        raise _Doubt("a field breaks its rule")
    if unique and faults.repeats(faults.parse(data)):
        raise _Doubt("a key stands twice")
    return value


def _ruled(value: Any) -> Iterator[Any]:
    """The structs in a value whose fields have rules."""
    for survey in _surveys(value):
        yield survey
        yield from survey.cells
    if isinstance(value, Cell):
        yield value


def _surveys(value: object) -> tuple[Survey, ...]:
    if isinstance(value, Matrix):
        return value.surveys
    return (value,) if isinstance(value, Survey) else ()


def _read_slowly(data: bytes, source: str, doubt: str) -> tuple[Survey, ...]:
    """What the fast way would not vouch for: an older format's surveys, or every fault."""
    try:
        plain = faults.parse(data)
        current = _migrated(plain)
    except ValueError as error:
        raise DocumentError(source, [Fault("$", str(error))]) from None
    if current is not plain:
        return decode(msgspec.json.encode(current), source)
    found = _head_faults(plain) or faults.find_in(plain, _KINDS[plain["kind"]])
    raise DocumentError(source, found or [Fault("$", doubt)]) from None


def _migrated(plain: Any) -> Any:
    """A document of an older format brought up to this one; any other as it is."""
    while isinstance(plain, dict) and type(plain.get("format")) is int and plain["format"] in MIGRATIONS:
        try:
            plain = MIGRATIONS[plain["format"]](plain)
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"format {plain['format']} cannot be migrated: {error!r}") from None
    return plain


def _head_faults(plain: Any) -> list[Fault]:
    """What keeps the rest of a document from being looked at."""
    if not isinstance(plain, dict):
        return [Fault("$", "is not an object with format and kind, as every document of amp-probe is")]
    number, kind = plain.get("format"), plain.get("kind")
    if type(number) is int and number > FORMAT:
        newer = f"format {shown(number)} is newer than this amp-probe reads ({FORMAT}); upgrade amp-probe"
        return [Fault("$.format", newer)]
    found = []
    if type(number) is not int or number != FORMAT:
        wrong = f"{shown(number)} is not a format; this amp-probe reads {FORMAT}"
        found.append(Fault("$.format", wrong if "format" in plain else "is missing"))
    if not isinstance(kind, str) or kind not in _KINDS:
        wrong = f"{shown(kind)} is not a kind of document; known: {', '.join(_KINDS)}"
        found.append(Fault("$.kind", wrong if "kind" in plain else "is missing"))
    return found


def _part(data: bytes, type_: type[T], source: str) -> T:
    """A part of a document that stands alone."""
    try:
        return _read_fast(data, type_)
    except _REFUSALS as error:
        raise DocumentError(source, faults.find(data, type_) or [Fault("$", str(error))]) from None


def _canonical(value: T, type_: type[T]) -> bytes:
    """JSON with sorted keys. Whole numbers in float fields become floats, so that the bytes survive a round trip."""
    plain = _writable(msgspec.to_builtins(value, enc_hook=_number))
    exact = msgspec.convert(plain, type_, dec_hook=real)
    return msgspec.json.encode(exact, order="sorted", enc_hook=_written)


def _number(value: Any) -> float:
    """Reals, and the numbers of numpy that a probe may have measured."""
    if not hasattr(value, "__float__"):
        raise NotImplementedError(f"a survey cannot hold {type(value).__name__}")
    return float(value)


def _written(value: Real) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))


def _writable(plain: Any) -> Any:
    """Plain values with non-finite floats as text, and text that UTF-8 can hold."""
    match plain:
        case float():
            return plain if math.isfinite(plain) else str(plain)
        case str():
            return plain if faults.sound(plain) else plain.encode("utf-8", "replace").decode()
        case dict():
            return {_writable(key): _writable(item) for key, item in plain.items()}
        case list() | tuple():
            return [_writable(item) for item in plain]
    return plain


def _real_schema(type_: type) -> dict[str, Any]:
    if type_ is not Real:
        raise NotImplementedError(f"no schema of {type_}")
    return {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}


def _steady(schema: Any) -> Any:
    """A schema in one form: versions of Python and msgspec indent docstrings and order alternatives differently."""
    if isinstance(schema, list):
        return [_steady(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    same = {key: _steady(item) for key, item in schema.items()}
    if "anyOf" in same:
        same["anyOf"].sort(key=repr)
    if isinstance(same.get("description"), str):
        same["description"] = "\n".join(line.strip() for line in same["description"].splitlines())
    return same
