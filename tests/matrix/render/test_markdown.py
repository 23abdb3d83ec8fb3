"""Markdown for a job summary, read by a CommonMark parser: what it says, and that other people's text stays text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html.parser import HTMLParser

import msgspec
import pytest
from markdown_it import MarkdownIt

from amp_matrix.plan import Plan
from amp_matrix.render import markdown
from amp_matrix.survey import Survey

TAGS = {
    "h1",
    "h2",
    "h3",
    "p",
    "strong",
    "em",
    "code",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "details",
    "summary",
    "ul",
    "li",
}


class Outline(HTMLParser):
    """The tags of a page in order, and its text outside code."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []
        self.code = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not attrs
        self.code += tag == "code"

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"/{tag}")
        self.code -= tag == "code"

    def handle_data(self, data: str) -> None:
        if not self.code:
            self.text.append(data)


def outline(surveys: Iterable[Survey], plans: Iterable[Plan]) -> Outline:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    return Outline(parser.render(markdown.render(surveys, plans)))


def test_verdicts_come_first(survey: Survey, plans: tuple[Plan, ...]) -> None:
    lines = markdown.render([survey], plans).splitlines()
    assert lines[2] == "**cpu (Intel Xeon, AVX512, torch 2.13.0): train in bf16-mixed, 2.1x to 2.4x fp32**"
    row = "| fp16-mixed | `op.softmax@fp16-mixed` | nonfinite | NaN in 3 of 64 outputs |"
    assert row in lines


def test_findings_say_error_and_limit(survey: Survey) -> None:
    text = markdown.render([survey], [])
    assert (
        "| `op.linear@fp16-mixed` | ≠ inaccurate | essential | backward | n 1.96e+04 of 1.5, slice nan of 2 |" in text
    )
    assert text.index("scaler.lifecycle") < text.index("op.lstm"), "an essential finding comes before a stress one"


def test_every_table_row_has_the_width_of_its_head(several: tuple[Survey, ...], plans: tuple[Plan, ...]) -> None:
    text = markdown.render(several, plans)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_hostile_text_is_no_markup(poisoned: tuple[Survey, Plan]) -> None:
    survey, plan = poisoned
    page = outline([survey], [plan])
    assert {tag.lstrip("/") for tag in page.tags} <= TAGS
    assert not re.search(r"@\w|#\d", "".join(page.text)), "GitHub would link this"
    assert not re.search(r"www\.|://", markdown.render([survey], [plan])), "GitHub would link this"


def test_hostile_text_changes_no_structure(make: object, survey: Survey, plans: tuple[Plan, ...], hostile: str) -> None:
    def page(word: str) -> list[str]:
        plan = msgspec.structs.replace(plans[0], reason=f"x {word}", caveats=(f"x {word}",))
        environment = msgspec.structs.replace(survey.environment, recorded={"model": f"x {word}"})
        return outline([make(environment=environment, device=f"x {word}")], [plan]).tags  # type: ignore[operator]

    assert page(hostile) == page("word")


def test_a_line_that_starts_like_a_list_is_a_paragraph(survey: Survey, plans: tuple[Plan, ...]) -> None:
    for start in ("- item", "1. item", "+ item", "===", "> quote", "    code", "~~~"):
        plan = msgspec.structs.replace(plans[0], reason=start)
        tags = set(outline([survey], [plan]).tags)
        assert tags <= TAGS | {f"/{tag}" for tag in TAGS}


def test_it_is_trimmed_with_a_note(make: object, large: Survey, monkeypatch: pytest.MonkeyPatch) -> None:
    assert markdown.LIMIT < 1024 * 1024, "GitHub refuses more"
    whole = markdown.render([make(cells=large.cells, device=f"cuda:{i}") for i in range(3)], [])  # type: ignore[operator]
    for limit in (1_000, 60_000, len(whole.encode()) - 1_000):
        monkeypatch.setattr(markdown, "LIMIT", limit)
        text = markdown.render([make(cells=large.cells, device=f"cuda:{i}") for i in range(3)], [])  # type: ignore[operator]
        assert limit - 1_000 < len(text.encode()) < limit + 200
        assert re.search(r"_Trimmed to fit: \d+ more lines\.", text)
        assert text.count("<details>") == text.count("</details>")


def test_one_large_survey_is_whole(large: Survey) -> None:
    assert "Trimmed" not in markdown.render([large], [])


def test_nothing_measured() -> None:
    assert markdown.render([], []) == "# amp-probe\n\nNothing has been measured.\n"


def test_code_and_words_are_as_readable_as_they_are_safe(make: object, plans: tuple[Plan, ...]) -> None:
    caveats = tuple(f"op.layer_norm[long_reduction]@bf16-true: inaccurate: grad_x {i}" for i in range(7))
    text = markdown.render([make()], [msgspec.structs.replace(plans[0], caveats=caveats)])  # type: ignore[operator]
    assert "- `op.layer_norm[long_reduction]@bf16-true`: inaccurate: grad_x 4\n- and 2 more\n" in text
    assert "&#95;" not in text
    assert "&#64;" not in text


@pytest.mark.parametrize("text", ["_a_", "a _b_ c", "__a__", "snake_case _x", "1. item", "1) item", "12. item"])
def test_what_could_be_markup_is_none(survey: Survey, plans: tuple[Plan, ...], text: str) -> None:
    def tags(reason: str) -> list[str]:
        return outline([survey], [msgspec.structs.replace(plans[0], reason=reason)]).tags

    assert tags(text) == tags("word")


def test_a_filter_does_not_change_what_was_measured(survey: Survey, plans: tuple[Plan, ...]) -> None:
    nothing = msgspec.structs.replace(survey, cells=())
    text = markdown.render([nothing], plans, coverage=[survey])
    assert text.splitlines()[:7] == markdown.render([survey], plans).splitlines()[:7]
    assert "Measured: cpu" in text
    assert f"none of {len(survey.cells)} cells." in text


def test_speeds_are_shown_among_many_rows(timed: Survey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "FEW_CELLS", 100)
    text = markdown.render([timed], [])
    assert "\n| `speed.infer` | ✓ 1.0x | ✓ 1.5x to 1.9x | ◐ emulated 0.06x to 0.7x |\n" in text
    assert "op.softmax" not in text


def test_a_simulated_survey_shows_the_dtypes_seen(simulated: Survey) -> None:
    text = markdown.render([simulated], [])
    assert "| `autocast.policy@bf16-mixed` | enter | bfloat16 from autocast |" in text
    assert "exp59 |\n" in text
    assert "| `autocast.policy` | ◌ fp32/bf16 | ◌ fp32/fp16 |" in text
