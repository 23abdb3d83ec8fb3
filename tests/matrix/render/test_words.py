"""How untrusted text, numbers and statuses are written."""

from __future__ import annotations

import math
import unicodedata

import pytest

from amp_matrix.render import words
from amp_matrix.survey import Cell, Stage, Status, TensorError, conclude


def test_every_status_has_its_own_look() -> None:
    assert set(words.LOOKS) == {*Status, None}
    for field in ("icon", "ascii", "word", "short"):
        values = [getattr(look, field) for look in words.LOOKS.values()]
        assert len(set(values)) == len(values)
    assert all(look.ascii.isascii() and len(look.short) <= 7 for look in words.LOOKS.values())


def test_plain_leaves_nothing_that_a_terminal_obeys(hostile: str) -> None:
    line = words.plain(hostile)
    assert len(line) <= words.LIMIT
    assert not [c for c in line if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a \x1b[1;31mred\x1b[0m b", "a red b"),
        ("\x1b]0;title\x07name", "name"),
        ("one\n two\t three", "one two three"),
        ("abc\u202edef\u200b", "abcdef"),
        ("\ud800", ""),
        ("naïve 漢字 é", "naïve 漢字 é"),
    ],
)
def test_plain_keeps_what_is_visible(text: str, line: str) -> None:
    assert words.plain(text) == line


def test_numbers() -> None:
    assert [words.seconds(s) for s in (0.0021, 1.44, 600.0, math.nan)] == ["2.1 ms", "1.44 s", "10 min", "unknown"]
    assert [words.multiple(m) for m in (0.52, 2.35, 61.2)] == ["0.5x", "2.4x", "61.2x"]
    assert words.eps(19630.0) == "1.96e+04"
    assert words.multiple(0.0422) == "0.04x"


def judged(status: Status, reason: str, *errors: TensorError) -> Cell:
    ok, bad = Stage(name="infer", errors=(TensorError("out", "float16", 0.2, 1.5),)), "backward"
    outcome = conclude((ok, Stage(name=bad, status=status, reason=reason, errors=errors)))
    return Cell(probe="op.x", precision="fp16-true", tier="stress", revision=1, outcome=outcome)


def test_errors_are_those_of_the_tensor_that_the_reason_names() -> None:
    weight = TensorError("grad weight", "float16", n=390.0, n_limit=1.5, s=576.0, s_limit=2.0)
    bias = TensorError("grad bias", "float16", n=999.0, n_limit=1.5)
    reason = "grad weight: 390 eps off, limit 1.5"
    assert words.errors(judged(Status.INACCURATE, reason, bias, weight)) == "n 390 of 1.5, slice 576 of 2"
    assert words.errors(judged(Status.INACCURATE, "far off", weight, bias)) == "n 999 of 1.5"
    assert words.errors(judged(Status.INACCURATE, "not repeatable")) == ""


def test_what_is_not_inaccurate_has_no_error_to_show() -> None:
    close = TensorError("out", "float16", n=0.42, n_limit=1.5)
    assert words.errors(judged(Status.NONFINITE, "out: NaN", close)) == ""


def test_a_speed_is_an_interval() -> None:
    def timed(status: Status, **numbers: float) -> Cell:
        outcome = conclude((Stage(name="time", status=status, numbers=numbers),))
        return Cell(probe="speed.x", precision="fp16-true", tier="stress", revision=1, outcome=outcome)

    whole = timed(Status.OK, gain=1.7, gain_low=1.5, gain_high=1.9)
    slow = timed(Status.EMULATED, gain=0.5, gain_low=0.4, gain_high=0.6)
    assert (words.face(whole), words.face(whole, short=True)) == ("1.5x to 1.9x", "1.5-1.9x")
    assert (words.face(slow), words.face(slow, short=True)) == ("emulated 0.4x to 0.6x", "0.4-0.6x")
    assert words.gain(timed(Status.OK, gain=2.25, gain_low=math.nan, gain_high=2.4)) == "2.2x"
    assert words.gain(timed(Status.OK, gain=math.nan)) == ""
