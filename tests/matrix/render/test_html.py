"""The page: one file that loads nothing, whose own policy stops what it does not hold, with text that stays text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from html.parser import HTMLParser
from importlib.resources import files

import msgspec
import pytest

from amp_matrix.plan import Plan
from amp_matrix.render import html
from amp_matrix.survey import Cell, Survey

VOID = {"meta", "input", "br"}
TAGS = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "a",
    "header",
    "h1",
    "h2",
    "h3",
    "p",
    "main",
    "section",
    "article",
    "details",
    "summary",
    "div",
    "table",
    "caption",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "code",
    "span",
    "ul",
    "li",
    "form",
    "label",
    "input",
    "fieldset",
    "legend",
    "noscript",
    "dl",
    "dt",
    "dd",
    "button",
    "strong",
    "script",
}


class Page(HTMLParser):
    """What a page holds: its tags with their attributes, the text of styles and scripts; fails on a wrong nesting."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.raw: list[tuple[dict[str, str | None], str]] = []
        self.stack: list[str] = []
        self.feed(text)
        self.close()
        assert not self.stack

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] in ("style", "script"):
            self.raw.append((self.tags[-1][1], data))
        else:
            self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def data(self) -> dict[str, list[dict[str, object]]]:
        (found,) = (text for attributes, text in self.raw if attributes.get("type") == "application/json")
        return json.loads(found)  # type: ignore[no-any-return]

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(tag, tuple(attributes)) for tag, attributes in self.tags]


def assert_safe(page: Page) -> None:
    names = Counter(tag for tag, _ in page.tags)
    assert set(names) <= TAGS
    assert (names["script"], names["style"]) == (2, 1)
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "src", "srcdoc")], tag
        assert (attributes.get("href") or "#").startswith("#")


def test_the_policy_allows_exactly_what_the_page_holds(survey: Survey, plans: tuple[Plan, ...]) -> None:
    page = Page(html.render([survey], plans))
    (policy,) = (m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in (policy or "").split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in (policy or "")
    style, script = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for attributes, text in page.raw
        if "type" not in attributes
    )
    assert rules["style-src"] == f"'sha256-{style}'"
    assert rules["script-src"] == f"'sha256-{script}'"


def test_the_page_loads_nothing(several: tuple[Survey, ...], plans: tuple[Plan, ...]) -> None:
    text = html.render(several, plans)
    assert_safe(Page(text))
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg\")", text)


def test_the_script_writes_no_markup() -> None:
    script = files(html).joinpath("page.js").read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|Function\(|\.srcdoc", script)


def test_verdicts_then_what_was_not_chosen(survey: Survey, plans: tuple[Plan, ...]) -> None:
    text = html.render([survey], plans)
    sentence = "cpu (Intel Xeon, AVX512, torch 2.13.0): train in bf16-mixed, 2.1x to 2.4x fp32"
    assert text.index(sentence) < text.index("NaN in 3 of 64 outputs") < text.index('class="matrix"')
    assert "Not measured: cuda, mps, xpu." in text


def test_the_matrix_is_a_table_with_heads(survey: Survey) -> None:
    page = Page(html.render([survey], []))
    scopes = Counter(attributes["scope"] for attributes in page.all("th"))
    assert scopes["col"] == 6
    assert scopes["rowgroup"] == 5
    assert scopes["row"] == len([a for a in page.all("tr") if a.get("class") == "row"])
    assert len(page.all("caption")) == 1


def test_every_cell_has_its_button_and_its_data(survey: Survey) -> None:
    page = Page(html.render([survey], []))
    buttons = [int(b["data-c"] or -1) for b in page.all("button")]
    shown = [c.id for c in survey.cells if c.precision != "tf32"]
    ids = [str(cell["id"]) for cell in page.data["cells"]]
    assert sorted(ids[number] for number in buttons) == sorted(shown)
    assert sorted(ids) == sorted(c.id for c in survey.cells)


def test_a_button_says_the_status_of_its_cell(survey: Survey) -> None:
    page = Page(html.render([survey], []))
    cells = page.data["cells"]
    for button in page.all("button"):
        assert button["class"] == f"s s-{cells[int(button['data-c'] or -1)]['status']}"


def test_a_cell_carries_stages_errors_and_exception(survey: Survey) -> None:
    cells = {cell["id"]: cell for cell in Page(html.render([survey], [])).data["cells"]}
    linear = msgspec.convert(cells["op.linear@fp16-mixed"]["stages"], list[dict[str, object]])
    assert linear[1]["errors"] == [
        {"name": "weight.grad", "dtype": "float16", "n": 19630.0, "n_limit": 1.5, "s": "nan", "s_limit": 2.0}
    ]
    lstm = msgspec.convert(cells["op.lstm@fp16-mixed"]["stages"], list[dict[str, object]])
    assert lstm[0]["exception"] == {"type": "RuntimeError", "text": "\"softmax_kernel\" not implemented for 'Half'"}


def test_the_legend_has_only_what_is_there(several: tuple[Survey, ...]) -> None:
    values = [i["value"] for i in Page(html.render(several[3:], [])).all("input") if i.get("name") == "status"]
    assert values == ["ok"]


def test_findings_are_written_out_for_readers_without_script(survey: Survey) -> None:
    page = Page(html.render([survey], []))
    written = [d["data-status"] for d in page.all("details") if d.get("class") == "finding"]
    assert written.pop() == "simulated"
    findings = written
    assert findings[0] == "crash"
    assert findings[-1] == "emulated", "a stress cell comes after every essential one"
    assert len(findings) == 9


def test_hostile_text_is_no_markup(poisoned: tuple[Survey, Plan]) -> None:
    survey, plan = poisoned
    assert_safe(Page(html.render([survey], [plan])))


def test_hostile_text_changes_no_structure(survey: Survey, make: object, plans: tuple[Plan, ...], hostile: str) -> None:
    def page(word: str) -> Page:
        text = f"x {word}"
        (rejection,) = plans[0].rejected
        rejection = msgspec.structs.replace(rejection, precision=text, cell=text, status=text, reason=text)
        plan = msgspec.structs.replace(plans[0], reason=text, caveats=(text,), rejected=(rejection,))
        environment = msgspec.structs.replace(survey.environment, recorded={"model": text})
        cells = [msgspec.structs.replace(cell, variant=text) for cell in survey.cells]
        built = make(device=text, environment=environment, started=text, cells=tuple(cells))  # type: ignore[operator]
        return Page(html.render([built], [plan]))

    assert page(hostile).shape == page("word").shape


def test_the_data_cannot_close_its_element(poisoned: tuple[Survey, Plan]) -> None:
    text = html.render([poisoned[0]], [])
    data = text[text.index('id="data">') + 10 :]
    data = data[: data.index("</script>")]
    assert not re.search("[<>&\u2028\u2029]", data)
    assert json.loads(data)["cells"]


def test_nothing_measured() -> None:
    page = Page(html.render([], []))
    assert_safe(page)
    assert "Nothing has been measured." in "".join(page.text)
    assert not page.all("table")


def test_ten_thousand_cells(large: Survey) -> None:
    text = html.render([large], [])
    assert len(text) < 12_000_000
    assert len(Page(text).all("button")) == 10_000


def _luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast_is_wcag_aa(theme: str) -> None:
    style = files(html).joinpath("page.css").read_text(encoding="utf-8")
    light, dark = style.split("@media screen and (prefers-color-scheme: dark)")
    colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light if theme == "light" else dark))
    pairs = [(name, name.removesuffix("-ink")) for name in colors if name.endswith("-ink")]
    assert len(pairs) == 11
    pairs += [(ink, paper) for ink in ("ink", "quiet", "accent") for paper in ("page", "raised")]
    for ink, paper in pairs:
        low, high = sorted((_luminance(colors[ink]), _luminance(colors[paper])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, f"{ink} on {paper} in {theme}"


def test_a_finding_says_its_error_and_limit_only_where_it_is_inaccurate(survey: Survey) -> None:
    text = "".join(Page(html.render([survey], [])).text)
    assert text.count("Error of limit, in eps: ") == 1
    assert "Error of limit, in eps: n 1.96e+04 of 1.5, slice nan of 2." in text


def test_a_filter_does_not_change_what_was_measured(survey: Survey, plans: tuple[Plan, ...]) -> None:
    text = "".join(Page(html.render([msgspec.structs.replace(survey, cells=())], plans, coverage=[survey])).text)
    assert "Measured: cpu (Intel Xeon, AVX512, torch 2.13.0), " in text
    assert f"none of {len(survey.cells)} cells" in text


def test_blanks_are_told_from_what_was_filtered_out(survey: Survey) -> None:
    failing = tuple(c for c in survey.cells if c.probe == "op.softmax" and c.precision == "fp16-mixed")
    part = html.render([msgspec.structs.replace(survey, cells=failing)], [], coverage=[survey])
    blank = '<span class="vh">not asked</span>'
    assert blank in html.render([survey], [])
    assert blank not in part
    assert len(Page(part).all("button")) == 1


def test_a_simulated_survey_shows_the_dtypes_seen(simulated: Survey) -> None:
    page = Page(html.render([simulated], []))
    text = "".join(page.text)
    assert "Dtypes seen in simulated cells" in text
    assert "float32: bfloat16 from linear, matmul; float32 from exp0, " in text
    assert "◌ fp32/bf16" in text
    assert_safe(page)


def test_a_matrix_that_fits_has_no_scroll_box(survey: Survey, make: object) -> None:
    def boxes(cells: tuple[Cell, ...]) -> list[str | None]:
        return [d.get("class") for d in Page(html.render([make(cells=cells)], [])).all("div")]  # type: ignore[operator]

    many = tuple(
        msgspec.structs.replace(survey.cells[0], precision=f"bf16-mixed+te-{recipe}")
        for recipe in ("delayed", "current", "mxfp8", "block", "nvfp4", "x", "y")
    )
    assert "fits" in boxes(survey.cells)
    assert "scroll" not in boxes(survey.cells)
    assert "scroll" in boxes(many)
