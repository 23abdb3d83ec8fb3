"""Documents: what is refused, where the fault is said to be, and the form that is written."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from importlib import resources
from typing import Any

import numpy
import pytest
from jsonschema import Draft202012Validator

from amp_matrix import codec, faults
from amp_matrix.codec import DocumentError
from amp_matrix.survey import Cell, Environment, Stage, Status, Survey, TensorError, conclude, not_run


def document(**changes: Any) -> dict[str, Any]:
    """A small survey as plain values."""
    stage = {"name": "forward", "status": "error", "reason": "boom", "seconds": 0.5}
    cell = {
        "probe": "op.softmax",
        "precision": "bf16-mixed",
        "tier": "essential",
        "revision": 1,
        "outcome": {"status": "error", "stage": "forward", "reason": "boom", "stages": [stage]},
    }
    plain = {
        "format": 1,
        "kind": "survey",
        "tool": "0.1.0",
        "device": "cpu",
        "suite": "core",
        "started": "2026-01-31T08:00:00Z",
        "seconds": 12.5,
        "environment": {"identity": {"device": "cpu"}},
        "cells": [cell, {**copy.deepcopy(cell), "variant": "large"}],
    }
    return copy.deepcopy({**plain, **changes})


def at(plain: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The document with one value, at a dotted path, replaced."""
    *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    part: Any = plain
    for key in parents:
        part = part[key]
    part[last] = value
    return plain


def refused(content: bytes | dict[str, Any]) -> list[tuple[str, str]]:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(DocumentError) as caught:
        codec.decode(data, "a.json")
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return [(fault.place, fault.message) for fault in caught.value.faults]


def survey(*stages: Stage, **changes: Any) -> Survey:
    cell = Cell(probe="op.softmax", precision="fp32", tier="stress", revision=1, outcome=conclude(stages))
    fields: dict[str, Any] = {
        "tool": "0.1.0",
        "device": "cpu",
        "suite": "core",
        "started": "2026-01-31T08:00:00Z",
        "seconds": 1.0,
        "environment": Environment(identity={"device": "cpu"}),
        "cells": (cell,),
    }
    return Survey(**{**fields, **changes})


def test_both_kinds_are_read() -> None:
    (one,) = codec.decode(json.dumps(document()).encode(), "a.json")
    assert [c.id for c in one.cells] == ["op.softmax@bf16-mixed", "op.softmax[large]@bf16-mixed"]
    both = {"format": 1, "kind": "matrix", "surveys": [document(), document(device="cuda:1")]}
    assert [s.device for s in codec.decode(json.dumps(both).encode(), "a.json")] == ["cpu", "cuda:1"]


def test_every_fault_at_once_in_order_with_its_place() -> None:
    plain = document(device="gpu", seconds="soon", extra=1)
    at(plain, "cells.0.precision", "bf16-mixd")
    at(plain, "cells.0.outcome.status", "good")
    at(plain, "cells.1.outcome.status", "ok")
    at(plain, "cells.1.outcome.stages.0.numbers", {"a b": "fast", "gain": None})
    del plain["cells"][1]["tier"]
    said = refused(plain)
    assert said == [
        ("$.extra", "unknown field; known: format, kind, tool, device, suite, started, seconds, environment, cells"),
        ("$.device", "'gpu' is not a device; known: cpu, mps, cuda:N, xpu:N"),
        ("$.seconds", 'expected a number, "nan", "inf" or "-inf", got \'soon\''),
        ("$.cells[0].precision", "unknown compute precision 'bf16-mixd'; did you mean 'bf16-mixed'?"),
        ("$.cells[0].outcome.status", said[4][1]),
        ("$.cells[1].tier", "is missing"),
        ('$.cells[1].outcome.stages[0].numbers["a b"]', said[6][1]),
        ("$.cells[1].outcome.stages[0].numbers.gain", said[7][1]),
    ]
    assert said[4][1].startswith("unknown status 'good'; known: crash, timeout")


def test_the_text_of_an_error_names_the_source_on_every_line() -> None:
    error = DocumentError("bad\n\x1b[31m.json", refused_faults := faults.find(b"{}", Stage))
    assert str(error) == "bad\\n\\x1b[31m.json: $.name: is missing"
    assert error.faults == refused_faults


def test_a_status_better_than_its_stages_is_refused_where_it_stands() -> None:
    plain = at(document(), "cells.1.outcome.status", "ok")
    assert refused(plain) == [("$.cells[1].outcome.status", "status is ok, but the worst of the stages is error")]
    plain = at(document(), "cells.0.outcome", {"status": "ok"})
    assert refused(plain) == [("$.cells[0].outcome.status", "status is ok, but no stage gave it")]


@pytest.mark.parametrize(
    ("path", "value", "place", "message"),
    [
        ("device", "cuda", "$.device", "not a device"),
        ("device", "cuda:01", "$.device", "not a device"),
        ("device", "cpu\n", "$.device", "not a device"),
        ("device", 3, "$.device", "expected text, got the number 3"),
        ("started", "2026-02-31T08:00:00Z", "$.started", "is not a UTC time like"),
        ("started", "2026-01-31T08:00:00+01:00", "$.started", "is not a UTC time like"),
        ("started", "2026-01-31 08:00:00Z", "$.started", "is not a UTC time like"),
        ("started", "٢٠٢٦-01-31T08:00:00Z", "$.started", "is not a UTC time like"),
        ("seconds", True, "$.seconds", "got true"),
        ("seconds", "NaN", "$.seconds", "got 'NaN'"),
        ("seconds", 10**400, "$.seconds", "the number is out of range"),
        ("tool", "\ud800", "$.tool", "holds half of a surrogate pair"),
        ("tool", None, "$.tool", "expected text, got null"),
        ("environment", [], "$.environment", "expected an object, got a list"),
        ("environment.identity", {"torch": 2}, "$.environment.identity.torch", "expected text, got the number 2"),
        ("environment.identity", {"\ud800": "x"}, '$.environment.identity["\\ud800"]', "surrogate"),
        ("cells", {}, "$.cells", "expected a list, got an object"),
        ("cells.0", "x", "$.cells[0]", "expected an object, got 'x'"),
        ("cells.0.probe", "softmax", "$.cells[0].probe", "is not a probe's name"),
        ("cells.0.probe", "op." + "x" * 1000, "$.cells[0].probe", "longer than 200 characters"),
        ("cells.0.variant", "La rge", "$.cells[0].variant", "is not a variant"),
        ("cells.0.precision", "fp32+te-mxfp8", "$.cells[0].precision", "stands beside"),
        ("cells.0.revision", 1.0, "$.cells[0].revision", "expected a whole number"),
        ("cells.0.revision", -1, "$.cells[0].revision", "a revision is from 0"),
        ("cells.0.revision", 2**80, "$.cells[0].revision", "a revision is from 0"),
        ("cells.0.tier", "esential", "$.cells[0].tier", "did you mean 'essential'?"),
        ("cells.0.evidence", "guessed", "$.cells[0].evidence", "unknown evidence 'guessed'"),
        ("cells.0.evidence", "simulated", "$.cells[0]", "a simulated cell has no status"),
        ("cells.0.outcome.status", None, "$.cells[0].outcome.status", "worst of the stages is error"),
        ("cells.0.outcome.stages.0.exception", 1, "$.cells[0].outcome.stages[0].exception", "expected an object"),
        ("cells.0.outcome.stages.0.curves", {"loss": [1, "x"]}, "$.cells[0].outcome.stages[0].curves.loss[1]", "'x'"),
    ],
)
def test_a_fault_has_its_place(path: str, value: Any, place: str, message: str) -> None:
    ((found, said),) = refused(at(document(), path, value))
    assert found == place
    assert message in said


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"{", "is not JSON: Expecting property name"),
        (b'{"format": 1} x', "is not JSON: Extra data at line 1, column 15"),
        (b"\xff\xfe", "is not UTF-8: invalid start byte at byte 0"),
        (b'\xef\xbb\xbf{"format": 1}', "is not JSON"),
        (b"[" * 1_000_000, "is nested too deeply"),
        (b'{"a":' * 100_000, "is nested too deeply"),
        (b"[]", "is not an object"),
        (b"null", "is not an object"),
    ],
)
def test_what_is_no_document_at_all(data: bytes, message: str) -> None:
    ((place, said),) = refused(data)
    assert place == "$"
    assert message in said


def test_half_a_document() -> None:
    whole = json.dumps(document()).encode()
    for end in range(0, len(whole), 7):
        assert len(refused(whole[:end])) == 1


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ({"format": 2}, [("$.format", "format 2 is newer than this amp-probe reads (1); upgrade amp-probe")]),
        (
            {"format": 10**30},
            [("$.format", f"format {10**30} is newer than this amp-probe reads (1); upgrade amp-probe")],
        ),
        ({"format": 0}, [("$.format", "0 is not a format; this amp-probe reads 1")]),
        ({"format": True}, [("$.format", "True is not a format; this amp-probe reads 1")]),
        ({"format": 1.0}, [("$.format", "1.0 is not a format; this amp-probe reads 1")]),
        ({"kind": "plan"}, [("$.kind", "'plan' is not a kind of document; known: survey, matrix")]),
        ({"kind": []}, [("$.kind", "[] is not a kind of document; known: survey, matrix")]),
        ({"kind": "matrix"}, None),
    ],
)
def test_the_head(head: dict[str, Any], expected: list[tuple[str, str]] | None) -> None:
    said = refused(document(**head))
    assert said == expected if expected else ("$.surveys", "is missing") in said


def test_no_head() -> None:
    assert refused({}) == [("$.format", "is missing"), ("$.kind", "is missing")]


def test_a_newer_survey_inside_a_matrix() -> None:
    ((place, said),) = refused({"format": 1, "kind": "matrix", "surveys": [document(), document(format=2)]})
    assert place == "$.surveys[1].format"
    assert "2" in said


def test_a_key_that_stands_twice_is_refused_wherever_it_is() -> None:
    text = json.dumps(document())
    doubled = text.replace('"status": "error"', '"status": "ok", "status": "error"', 1)
    assert refused(doubled.encode()) == [("$.cells[0].outcome.status", "stands twice in one object")]
    doubled = text.replace('"identity": {', '"identity": {"device": "mps", ')
    assert refused(doubled.encode()) == [("$.environment.identity.device", "stands twice in one object")]


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, "9" * 10**6], ids=len)
def test_numbers_that_json_or_a_float_cannot_hold(word: str) -> None:
    ((place, said),) = refused(json.dumps(document(seconds=0)).replace('"seconds": 0,', f'"seconds": {word},').encode())
    assert place == "$.seconds"
    assert "is not JSON" in said or "out of range" in said


def test_size_is_limited_before_anything_is_parsed() -> None:
    assert refused(b" " * (codec.LIMIT + 1)) == [("$", "is larger than 64 MiB")]


def test_a_hostile_document_s_faults_are_bounded() -> None:
    said = refused(document(cells=[0] * 100_000))
    assert len(said) == faults.MOST + 1
    assert said[-1] == ("$", f"more faults follow; the first {faults.MOST} are listed")
    long = refused(document(**{"x" * 10**6: 1, "tool": ["y" * 10**6], "device": "z" * 10**6}))
    assert all(len(place) + len(message) < 400 for place, message in long)


def test_older_formats_are_migrated_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {-1: lambda d: {**d, "format": 0}, 0: lambda d: {**{k: v for k, v in d.items() if k != "old"}, "format": 1}}
    monkeypatch.setattr(codec, "MIGRATIONS", steps)
    (read,) = codec.decode(json.dumps(document(format=-1, old=True)).encode(), "a.json")
    assert (read.format, read.device) == (1, "cpu")
    monkeypatch.setattr(codec, "MIGRATIONS", {0: lambda d: d["gone"]})
    assert refused(document(format=0)) == [("$", "format 0 cannot be migrated: KeyError('gone')")]


def test_there_is_no_format_before_the_first() -> None:
    assert codec.MIGRATIONS == {}


def test_the_canonical_form() -> None:
    errors = (TensorError("out", "bfloat16", n=math.nan, n_limit=2, s=math.inf, s_limit=-math.inf),)
    one = survey(Stage(name="forward", errors=errors, numbers={"b": -0.0, "a": 1}, reason="nan"), seconds=7)
    data = codec.encode(one)
    plain = json.loads(data)
    assert data == json.dumps(plain, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    (stage,) = plain["cells"][0]["outcome"]["stages"]
    assert stage["errors"][0] == {
        "dtype": "bfloat16",
        "n": "nan",
        "n_limit": 2.0,
        "name": "out",
        "s": "inf",
        "s_limit": "-inf",
    }
    assert b'"numbers":{"a":1.0,"b":-0.0}' in data
    assert b'"seconds":7.0' in data
    assert stage["reason"] == "nan"
    (back,) = codec.decode(data, "a.json")
    assert math.isnan(back.cells[0].outcome.stages[0].errors[0].n)
    assert back.cells[0].outcome.stages[0].reason == "nan"


def test_an_id_is_the_hash_of_the_file() -> None:
    one = survey(Stage(name="forward"))
    assert codec.survey_id(one) == hashlib.sha256(codec.encode(one)).hexdigest()
    assert codec.survey_id(one) == codec.survey_id(survey(Stage(name="forward")))
    assert codec.survey_id(one) != codec.survey_id(survey(Stage(name="backward")))


def test_ids_are_kept_no_longer_than_their_surveys() -> None:
    before = len(codec._IDS)
    ids = {codec.survey_id(survey(Stage(name="forward"), tool=str(n))) for n in range(50)}
    assert len(ids) == 50
    assert len(codec._IDS) <= before + 1


def test_equal_numbers_give_equal_ids_however_they_were_made() -> None:
    floats = survey(Stage(name="time", numbers={"gain": 2.0}), seconds=3.0)
    whole = survey(Stage(name="time", numbers={"gain": 2}), seconds=3)
    arrays = survey(Stage(name="time", numbers={"gain": numpy.float32(2)}), seconds=numpy.float64(3))
    assert codec.encode(floats) == codec.encode(whole) == codec.encode(arrays)


def test_what_a_probe_should_not_have_left_there() -> None:
    text = codec.encode_stage(Stage(name="forward", reason="bad \ud800 half"))
    assert codec.decode_stage(text).reason == "bad ? half"
    with pytest.raises(NotImplementedError, match="a survey cannot hold object"):
        codec.encode_stage(Stage(name="forward", numbers={"gain": object()}))  # type: ignore[dict-item]


def test_a_file_named_by_its_id() -> None:
    one = survey(Stage(name="forward"))
    data, name = codec.encode(one), codec.survey_id(one)
    assert codec.decode_named(data, "a.json", name) == one
    pretty = json.dumps(json.loads(data), indent=2).encode()
    assert codec.survey_id(codec.decode_named(pretty, "a.json", name)) == name
    with pytest.raises(DocumentError, match="not the survey that the file's name says"):
        codec.decode_named(data, "a.json", "0" * 64)
    forged = data.replace(b'"ok"', b'"crash"')
    with pytest.raises(DocumentError):
        codec.decode_named(forged[:-5], "a.json", hashlib.sha256(forged[:-5]).hexdigest())


def test_parts_are_refused_with_places_too() -> None:
    with pytest.raises(DocumentError) as caught:
        codec.decode_cell(b'{"probe":"x","precision":"fp32","tier":"stress","revision":1,"outcome":{}}', "line 3")
    assert [f.place for f in caught.value.faults] == ["$.probe", "$.outcome.status"]
    for decode in (codec.decode_cell, codec.decode_outcome, codec.decode_stage, codec.decode_environment):
        for data in (b"", b"{", b"[]", b"\xff", b'{"x":1}'):
            with pytest.raises(DocumentError):
                decode(data)


def test_the_shipped_schema_is_that_of_the_structs() -> None:
    shipped = resources.files("amp_matrix").joinpath("schema/survey-v1.json").read_text(encoding="utf-8")
    assert json.loads(shipped) == codec.json_schema(), "write it anew: amp-probe schema > …/schema/survey-v1.json"
    assert shipped == json.dumps(codec.json_schema(), indent=2, sort_keys=True) + "\n"
    Draft202012Validator.check_schema(codec.json_schema())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("device", "gpu"),
        ("started", "yesterday"),
        ("seconds", "NaN"),
        ("format", 2),
        ("cells.0.precision", "fp32+te-mxfp8"),
        ("cells.0.probe", "softmax"),
        ("cells.0.revision", -1),
        ("cells.0.outcome.status", "good"),
        ("cells.0.outcome.extra", 1),
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(path: str, value: Any) -> None:
    validator = Draft202012Validator(codec.json_schema())
    assert validator.is_valid(document())
    assert not validator.is_valid(at(document(), path, value))


def test_the_prose_page_names_every_field_and_status() -> None:
    page = resources.files("amp_matrix").joinpath("schema/README.md").read_text(encoding="utf-8")
    for name, part in codec.json_schema()["$defs"].items():
        assert all(f"`{field}`" in page for field in part.get("properties", {})), name
    assert all(f"`{status}`" in page for status in Status)


def test_a_cell_that_never_ran_reads_back() -> None:
    cell = Cell("op.softmax", "fp32", "stress", 1, not_run("filtered out", "filtered"))
    assert codec.decode_cell(codec.encode_cell(cell)) == cell
