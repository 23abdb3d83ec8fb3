"""How untrusted text, numbers and statuses are written."""

from __future__ import annotations

import math
import unicodedata

import pytest

from amp_matrix.render import words
from amp_matrix.survey import Status


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
