"""Whatever bytes come in, a document is read exactly or refused with places; whatever is written reads back."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from strategies import cells, environments, outcomes, reals, stages, surveys, texts

from amp_matrix import codec, faults
from amp_matrix.codec import DocumentError
from amp_matrix.survey import Stage, Survey

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from(["nan", "ok"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@cache
def validator() -> Draft202012Validator:
    return Draft202012Validator(codec.json_schema())


def reads(data: bytes) -> tuple[Survey, ...] | None:
    """What decode makes of the bytes; None where it refuses them as it should."""
    try:
        return codec.decode(data, "some.json")
    except DocumentError as error:
        refusal = error
    assert refusal.faults
    assert all(f.place.startswith("$") and f.message for f in refusal.faults)
    lines = str(refusal).split("\n")
    assert len(lines) == len(refusal.faults)
    assert all(line.isprintable() for line in lines)
    return None


@given(surveys())
def test_a_survey_reads_back_and_keeps_its_id(survey: Survey) -> None:
    data = codec.encode(survey)
    (back,) = codec.decode(data, "some.json")
    assert codec.encode(back) == data
    assert codec.survey_id(back) == codec.survey_id(survey)
    validator().validate(json.loads(data))


@given(st.lists(surveys(), max_size=3))
def test_a_matrix_reads_back(many: list[Survey]) -> None:
    data = codec.encode_matrix(many)
    back = codec.decode(data, "some.json")
    assert [codec.encode(s) for s in back] == [codec.encode(s) for s in many]
    validator().validate(json.loads(data))


@given(reals)
def test_every_float_reads_back_as_itself(number: float) -> None:
    stage = codec.decode_stage(codec.encode_stage(Stage(name="time", seconds=number)))
    assert repr(float(stage.seconds)) == repr(float(number))
    assert isinstance(stage.seconds, float)


@given(texts)
@example("nan")
@example("-inf")
@example("null")
def test_text_stays_text(text: str) -> None:
    stage = Stage(name=text, reason=text, dtypes={text: text})
    assert codec.decode_stage(codec.encode_stage(stage)) == stage


@given(st.data())
def test_parts_read_back_on_one_line(data: st.DataObject) -> None:
    pairs: list[tuple[Any, Any, Any]] = [
        (cells(), codec.encode_cell, codec.decode_cell),
        (outcomes(), codec.encode_outcome, codec.decode_outcome),
        (stages(), codec.encode_stage, codec.decode_stage),
        (environments(), codec.encode_environment, codec.decode_environment),
    ]
    for strategy, encode, decode in pairs:
        line = encode(data.draw(strategy))
        assert b"\n" not in line
        assert encode(decode(line)) == line


@given(st.binary(max_size=80))
@example(b"")
@example(b"{}")
@example(b"[" * 100_000)
@example(b'{"format":1,"kind":"survey","cells":' + b"[" * 100_000)
@example(b'\xff\xfe{\x00"\x00')
def test_random_bytes_are_refused(data: bytes) -> None:
    assert reads(data) is None


@given(JUNK)
def test_any_other_json_is_refused(value: object) -> None:
    assert reads(json.dumps(value).encode()) is None


@given(surveys(), st.data())
def test_flipped_bytes_are_refused_or_read_exactly(survey: Survey, data: st.DataObject) -> None:
    damaged = bytearray(codec.encode(survey))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    reads_exactly(bytes(damaged))


@given(surveys(), st.data())
def test_a_cut_document_is_refused(survey: Survey, data: st.DataObject) -> None:
    whole = codec.encode(survey).rstrip()
    assert reads(whole[: data.draw(st.integers(0, len(whole) - 1))]) is None


@settings(max_examples=300)
@given(surveys(), st.data())
def test_a_changed_value_is_refused_or_read_exactly(survey: Survey, data: st.DataObject) -> None:
    plain = json.loads(codec.encode(survey))
    parent, key = data.draw(st.sampled_from(list(places(plain))))
    match data.draw(st.sampled_from(["replace", "remove", "add", "rename"])):
        case "replace":
            parent[key] = data.draw(JUNK)
        case "remove":
            del parent[key]
        case "add" if isinstance(parent, dict):
            parent[data.draw(st.text(max_size=5))] = data.draw(JUNK)
        case "rename" if isinstance(parent, dict):
            parent[data.draw(st.text(max_size=5))] = parent.pop(key)
    reads_exactly(json.dumps(plain).encode())


def reads_exactly(data: bytes) -> None:
    """A document that is read says what its JSON says, nothing lost, nothing invented, and its schema agrees."""
    found = reads(data)
    if found is None:
        return
    said = json.loads(data)
    validator().validate(said)
    (survey,) = found
    again = json.loads(codec.encode(survey))
    assert with_defaults(again) == with_defaults(said)


def with_defaults(plain: Any) -> Any:
    """Plain values of a survey in one form: every default written, numbers as floats."""
    defaults = {"variant": "base", "evidence": "measured", "reason": "", "code": "", "stage": "", "text": ""}
    empty: dict[str, Any] = {"stages": [], "notes": [], "errors": [], "dtypes": {}, "numbers": {}, "curves": {}}
    zero = {"s": 0.0, "s_limit": 0.0, "seconds": 0.0, "scoped": {}, "recorded": {}, "exception": None}
    match plain:
        case dict():
            kept = {k: with_defaults(v) for k, v in plain.items()}
            known = {**defaults, **empty, **zero}
            return {k: v for k, v in kept.items() if k not in known or v != known[k]}
        case list():
            return [with_defaults(v) for v in plain]
        case bool() | None | str():
            return plain
    return float(plain)


def places(plain: Any) -> Any:
    """Every (parent, key) in plain values."""
    items = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for key, value in list(items):
        yield plain, key
        yield from places(value)


@given(surveys(max_cells=2), st.data())
def test_a_key_that_stands_twice_is_refused_by_name(survey: Survey, data: st.DataObject) -> None:
    text = codec.encode(survey).decode()
    key = data.draw(st.sampled_from(["tool", "device", "started", "environment"]))
    doubled = text.replace("{", '{"' + key + '":0,', 1)
    with pytest.raises(DocumentError) as caught:
        codec.decode(doubled.encode(), "some.json")
    assert (f"$.{key}", "stands twice in one object") in caught.value.faults


@given(surveys())
def test_the_slow_way_agrees_with_the_fast_one(survey: Survey) -> None:
    assert faults.find(codec.encode(survey), Survey) == ()
    assert msgspec.json.decode(codec.encode(survey))["kind"] == "survey"
