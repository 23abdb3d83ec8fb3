"""The slow way of reading a document: find every fault in it, each with its place."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import NODEFAULT, inspect

from amp_matrix.precision import nearest
from amp_matrix.rules import breach, shown
from amp_matrix.survey import Real

MOST = 1000
"""Faults that are listed of one document; a hostile one could have millions."""
_DIGITS = 310
"""No float has more digits before its point, and Python reads longer integers in quadratic time."""


class Fault(NamedTuple):
    """One thing that is wrong, and where: `$.cells[3].outcome.status`."""

    place: str
    message: str


class DocumentError(Exception):
    """A document that cannot be read. Its text has one line for each fault, with the source and the place."""

    def __init__(self, source: str, faults: Sequence[Fault]) -> None:
        super().__init__(source, tuple(faults))
        self.source = source
        self.faults = tuple(faults)

    def __str__(self) -> str:
        source = printable(self.source)
        # the place says nothing where the whole is wrong
        return "\n".join(": ".join([source, *([f.place] if f.place != "$" else []), f.message]) for f in self.faults)


class _Number(NamedTuple):
    """A number that JSON or a float cannot hold, as it stood in the text."""

    why: str


class _Object(dict[str, Any]):
    """A JSON object that remembers which keys it had twice."""

    repeated: tuple[str, ...] = ()


class _Full(Exception):
    """So many faults that no more are looked for."""


_BAD = object()


def find(data: bytes, type_: Any) -> tuple[Fault, ...]:
    """Every fault of a JSON text that should hold a value of the type, in the document's order, at most MOST."""
    try:
        return find_in(parse(data), type_)
    except ValueError as error:
        return (Fault("$", str(error)),)


def find_in(value: object, type_: Any) -> tuple[Fault, ...]:
    """Every fault of a parsed JSON value that should be of the type."""
    reader = _Reader()
    try:
        reader.read(inspect.type_info(type_), value, "$")
    except _Full:
        reader.faults.append(Fault("$", f"more faults follow; the first {MOST} are listed"))
    return tuple(reader.faults)


def parse(data: bytes) -> Any:
    """A JSON text as plain values; ValueError says in one line why it is not one."""
    if not data.strip():
        raise ValueError("is empty")
    try:
        text = data.decode("utf-8")
        return json.loads(
            text, object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def repeats(value: Any) -> bool:
    """Whether any object in a value that `parse` gave has a key twice."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, _Object):
            if part.repeated:
                return True
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return False


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    made = _Object(pairs)
    if len(made) < len(pairs):
        made.repeated = tuple(key for key, count in Counter(k for k, _ in pairs).items() if count > 1)
    return made


def _integer(text: str) -> object:
    return int(text) if len(text) < _DIGITS else _Number("the number is out of range")


def _float(text: str) -> object:
    number = float(text)
    return number if math.isfinite(number) else _Number("the number is out of range")


def _constant(text: str) -> object:
    return _Number(f"{text} is not JSON; amp-probe writes it as a string")


class _Reader:
    """Builds a value of a type from plain values and collects what is wrong on the way."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def read(self, node: inspect.Type, value: Any, place: str) -> Any:
        """The value as the type has it, or _BAD once its faults are noted."""
        if isinstance(value, _Number):
            return self._fault(place, value.why)
        match node:
            case inspect.StructType():
                return self._struct(node, value, place)
            case inspect.DictType():
                return self._dict(node, value, place)
            case inspect.VarTupleType():
                return self._list(node, value, place)
            case inspect.UnionType():
                return self._optional(node, value, place)
            case inspect.EnumType():
                return self._word(tuple(node.cls), value, place, node.cls.__name__.lower())
            case inspect.LiteralType():
                return self._word(node.values, value, place, place.rpartition(".")[2])
            case inspect.CustomType():
                return self._real(value, place)
        return self._plain(node, value, place)

    def _fault(self, place: str, message: str) -> object:
        if len(self.faults) >= MOST:
            raise _Full
        self.faults.append(Fault(place, message))
        return _BAD

    def _wrong(self, place: str, wanted: str, value: object) -> object:
        return self._fault(place, f"expected {wanted}, got {_kind(value)}")

    def _struct(self, node: inspect.StructType, value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            return self._wrong(place, "an object", value)
        before = len(self.faults)
        self._keys(tuple(f.encode_name for f in node.fields), value, place)
        read = {f.name: self._field(node, f, value, place) for f in node.fields}
        return _BAD if len(self.faults) > before else self._build(node, read, place)

    def _keys(self, known: tuple[str, ...], value: dict[str, Any], place: str) -> None:
        for key in value:
            if key not in known:
                self._fault(_at(place, key), f"unknown field; {nearest(key[:60], known)}")
        for key in getattr(value, "repeated", ()):
            self._fault(_at(place, key), "stands twice in one object")

    def _field(self, node: inspect.StructType, field: inspect.Field, value: dict[str, Any], place: str) -> Any:
        here = f"{place}.{field.encode_name}"
        if field.encode_name not in value:
            return self._fault(here, "is missing") if field.required else _absent(field)
        read = self.read(field.type, value[field.encode_name], here)
        if read is not _BAD and (message := breach(node.cls, field.name, read)):
            return self._fault(here, message)
        return read

    def _build(self, node: inspect.StructType, read: dict[str, Any], place: str) -> Any:
        try:
            return node.cls(**read)
        except ValueError as error:
            word = str(error).partition(" ")[0]
            return self._fault(f"{place}.{word}" if word in read else place, str(error))

    def _dict(self, node: inspect.DictType, value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            return self._wrong(place, "an object", value)
        for key in getattr(value, "repeated", ()):
            self._fault(_at(place, key), "stands twice in one object")
        return {self._text(k, _at(place, k)): self.read(node.value_type, v, _at(place, k)) for k, v in value.items()}

    def _list(self, node: inspect.VarTupleType, value: Any, place: str) -> Any:
        if not isinstance(value, list):
            return self._wrong(place, "a list", value)
        return tuple([self.read(node.item_type, item, f"{place}[{i}]") for i, item in enumerate(value)])

    def _optional(self, node: inspect.UnionType, value: Any, place: str) -> Any:
        if value is None:
            return None
        (inner,) = (t for t in node.types if not isinstance(t, inspect.NoneType))
        return self.read(inner, value, place)

    def _word(self, known: Sequence[Any], value: Any, place: str, what: str) -> Any:
        plain = tuple(getattr(k, "value", k) for k in known)
        if type(value) is not type(plain[0]):
            return self._wrong(place, "text" if isinstance(plain[0], str) else str(plain[0]), value)
        if value not in plain:
            hint = nearest(value[:60], plain) if isinstance(value, str) else f"known: {plain[0]}"
            return self._fault(place, f"unknown {what} {shown(value)}; {hint}")
        return known[plain.index(value)]

    def _real(self, value: Any, place: str) -> Any:
        try:
            return real(Real, value)
        except ValueError as error:
            return self._fault(place, str(error))

    def _plain(self, node: inspect.Type, value: Any, place: str) -> Any:
        if isinstance(node, inspect.StrType):
            return self._text(value, place)
        return value if type(value) is int else self._wrong(place, "a whole number", value)

    def _text(self, value: Any, place: str) -> Any:
        if not isinstance(value, str):
            return self._wrong(place, "text", value)
        return value if sound(value) else self._fault(place, "holds half of a surrogate pair")


def real(type_: type, value: object) -> Real:
    """A Real from a JSON value (msgspec's dec_hook): a number, "nan", "inf" or "-inf"; ValueError for anything else."""
    if type_ is not Real:
        raise NotImplementedError(f"no way to read {type_}")
    if type(value) is float or (type(value) is str and value in ("nan", "inf", "-inf")):
        return Real(value)
    if type(value) is not int:
        raise ValueError(f'expected a number, "nan", "inf" or "-inf", got {_kind(value)}')
    try:
        return Real(value)
    except OverflowError:
        raise ValueError("the number is out of range") from None


def sound(text: str) -> bool:
    """Whether UTF-8 can hold the text: half a surrogate pair, which JSON can spell, it cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """The text on one line, with every control character and other unprintable one escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _absent(field: inspect.Field) -> Any:
    return field.default if field.default_factory is NODEFAULT else field.default_factory()


def _at(place: str, key: str) -> str:
    """The place of a key: `.torch`, or `["with spaces"]`."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,60}", key, re.ASCII):
        return f"{place}.{key}"
    return f"{place}[{json.dumps(key[:60])}]"


def _kind(value: object) -> str:
    """What a JSON value is, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return shown(value)
        case int() | float():
            return f"the number {shown(value)}"
    return "a list" if isinstance(value, list) else "an object"
