"""What a field must hold beyond its type: names, patterns, times. Every reader and the JSON Schema go by these."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from amp_matrix.precision import COMPUTES, RECIPE_HOSTS, RECIPES
from amp_matrix.precision import parse as parse_precision
from amp_matrix.survey import Cell, Survey

DEVICE = r"cpu|mps|(?:cuda|xpu):(?:0|[1-9][0-9]{0,3})"
PROBE = r"[a-z0-9_]+(?:\.[A-Za-z0-9_]+)+"
VARIANT = r"[a-z0-9_]+"
STARTED = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"
PRECISIONS = COMPUTES + tuple(f"{host}+{recipe}" for host in RECIPE_HOSTS for recipe in RECIPES[1:])
REVISIONS = range(2**31)
LONGEST = 200
"""Characters of a name at most."""
_SHOWN = 60


class Rule(NamedTuple):
    """`check` says what is wrong with a value of the right type, or ""; `schema` is what JSON Schema can say of it."""

    check: Callable[[Any], str]
    schema: Mapping[str, Any]


def breach(type_: type, field: str, value: object) -> str:
    """How a value of the right type breaks its field's rule, or ""."""
    rule = RULES.get(type_, {}).get(field)
    return _judge(rule, value) if rule else ""


def broken(part: object) -> bool:
    """Whether any field of one struct breaks its rule. The structs inside it are not looked at."""
    return any(_judge(rule, getattr(part, field)) for field, rule in RULES.get(type(part), {}).items())


def shown(value: object) -> str:
    """A value from a document as a message shows it: one line, no control characters, never long."""
    text = repr(value[: _SHOWN + 1] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _judge(rule: Rule, value: object) -> str:
    """Long texts are refused before any check, which may keep what it saw."""
    too_long = isinstance(value, str) and len(value) > LONGEST
    return f"{shown(value)} is longer than {LONGEST} characters" if too_long else rule.check(value)


def _matches(pattern: str, wanted: str) -> Rule:
    compiled = re.compile(pattern)

    @lru_cache(maxsize=4096)
    def check(text: str) -> str:
        return "" if compiled.fullmatch(text) else f"{shown(text)} is not {wanted}"

    return Rule(check, {"pattern": f"^(?:{pattern})$", "maxLength": LONGEST})


@lru_cache(maxsize=4096)
def _precision(text: str) -> str:
    try:
        parse_precision(text)
    except ValueError as error:
        return str(error)
    return ""


@lru_cache(maxsize=4096)
def _started(text: str) -> str:
    try:
        if re.fullmatch(STARTED, text):
            datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
            return ""
    except ValueError:  # the 31st of February
        pass
    return f"{shown(text)} is not a UTC time like 2026-01-31T08:00:00Z"


def _revision(number: int) -> str:
    return "" if number in REVISIONS else f"a revision is from {REVISIONS[0]} to {REVISIONS[-1]}"


RULES: dict[type, dict[str, Rule]] = {
    Survey: {
        "device": _matches(DEVICE, "a device; known: cpu, mps, cuda:N, xpu:N"),
        "started": Rule(_started, {"pattern": f"^{STARTED}$"}),
    },
    Cell: {
        "probe": _matches(PROBE, "a probe's name like op.softmax"),
        "variant": _matches(VARIANT, "a variant like large"),
        "precision": Rule(_precision, {"enum": list(PRECISIONS)}),
        "revision": Rule(_revision, {"minimum": REVISIONS[0], "maximum": REVISIONS[-1]}),
    },
}
