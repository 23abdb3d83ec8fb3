"""The matrix on a terminal: what comes first, and that it fits and obeys any terminal."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterable

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from amp_matrix.plan import Plan, Rejection
from amp_matrix.render import terminal
from amp_matrix.survey import Survey

WIDTHS = (40, 60, 80, 120, 200)


def show(surveys: Iterable[Survey], plans: Iterable[Plan] = (), width: int = 80, **options: object) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False, **options)  # type: ignore[arg-type]
    console.print(terminal.matrix(surveys, plans))
    return out.getvalue()


def test_the_verdict_is_the_first_line_and_rejections_follow(survey: Survey, plans: tuple[Plan, ...]) -> None:
    lines = show([survey], plans).splitlines()
    assert lines[0] == "cpu (Intel Xeon, AVX512, torch 2.13.0): train in bf16-mixed, 2.1x to 2.4x fp32"
    assert lines[1] == "mps: infer in fp32, the fallback: nothing is known about mps"
    rejection = lines.index("  not fp16-mixed: op.softmax@fp16-mixed nonfinite: NaN in 3 of 64 outputs")
    assert rejection < next(i for i, line in enumerate(lines) if line.startswith("  softmax"))


def test_rejections_alike_are_one_line_for_all_tasks(survey: Survey, plans: tuple[Plan, ...]) -> None:
    unknown = [Rejection(p, f"copy.roundtrip@{p}", "unknown", "never measured") for p in ("tf32", "bf16-true")]
    plan = msgspec.structs.replace(plans[1], device="cpu", rejected=tuple(unknown))
    text = show([survey], [plan, msgspec.structs.replace(plan, task="train")])
    assert text.count("not tf32") == 1
    assert "\ncpu (Intel Xeon, AVX512, torch 2.13.0), to infer or train\n" in text
    assert "\n  not tf32, bf16-true: copy.roundtrip unknown: never measured\n" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_the_width(survey: Survey, plans: tuple[Plan, ...], width: int) -> None:
    lines = show([survey], plans, width).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert any("softmax" in line and "∞ nonfin" in line for line in lines)


def test_eighty_columns_hold_five_precisions_in_one_table(survey: Survey) -> None:
    row = next(line for line in show([survey]).splitlines() if line.startswith("  softmax "))
    assert row.split() == ["softmax", "✓", "ok", "✓", "ok", "∞", "nonfin.", "✓", "ok"]


def test_variants_that_came_out_alike_share_a_row(survey: Survey) -> None:
    text = show([survey])
    assert "  mlp [all 3] " in text
    assert "  softmax [large, row] " in text


def test_the_legend_has_only_what_is_there(survey: Survey, several: tuple[Survey, ...]) -> None:
    legend = show([several[3]]).splitlines()[-1]
    assert legend == "✓ ok          ran in the precision asked for, within its limit"
    assert "† crash       the process died" in show([survey])
    assert "crash" not in show([several[3]])


def test_a_claimed_cell_is_marked(survey: Survey) -> None:
    text = show([survey])
    assert "✓ ok?" in text
    assert "? claimed by a rule, not measured" in text


def test_many_cells_show_findings_and_counts(large: Survey) -> None:
    started = time.perf_counter()
    text = show([large])
    assert time.perf_counter() - started < 10
    assert re.search(r"^op  48\d of 500 rows ok throughout$", text, re.MULTILINE)
    assert "✓ ok          ran" in text
    assert not re.search(r"^  probe", text.replace("nonfin.", ""), re.MULTILINE) or "∞" in text
    assert all("∞" in line for line in text.splitlines() if line.startswith("  probe"))


def test_a_row_set_aside_as_ok_is_not_counted_as_a_variant_shown(large: Survey) -> None:
    assert "[all " not in show([large])


def test_color_is_never_the_only_sign(survey: Survey, plans: tuple[Plan, ...]) -> None:
    def printed(**options: object) -> str:
        out = io.StringIO()
        console = Console(file=out, width=80, force_terminal=True, **options)  # type: ignore[arg-type]
        console.print(terminal.matrix([survey], plans))
        return out.getvalue()

    colored = printed(color_system="standard")
    assert re.search(r"\x1b\[[\d;]*3\dm", colored)
    assert not re.search(r"\x1b\[[\d;]*3\dm", printed(no_color=True))
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == show([survey], plans)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_terminal_without_unicode_gets_ascii(survey: Survey, plans: tuple[Plan, ...], encoding: str) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    Console(file=out, width=50, force_terminal=False).print(terminal.matrix([survey], plans))
    out.flush()
    text = raw.getvalue().decode("ascii")
    assert "+ ok" in text
    assert "! crash" in text
    assert "?" not in text.replace("+ ok?", "").replace("? claimed", "")


@pytest.mark.parametrize("width", [40, 80])
def test_hostile_text_is_inert(poisoned: tuple[Survey, Plan], hostile: str, width: int) -> None:
    survey, plan = poisoned
    text = show([survey], [plan], width)
    assert not re.search(r"[^\n\x20-\x7e\xa0-\u2007\u2010-\u2027\u2030-\u205f\u2070-\ufefe]", text)
    assert max(map(cell_len, text.splitlines())) <= width
    if "[bold red]" in hostile:
        assert "[bold red]" in text


def test_hostile_text_sends_no_sequence_of_its_own(poisoned: tuple[Survey, Plan]) -> None:
    survey, plan = poisoned
    out = io.StringIO()
    Console(file=out, width=80, force_terminal=True, color_system="truecolor").print(terminal.matrix([survey], [plan]))
    sequences = set(re.findall(r"\x1b.[^m]*", out.getvalue()))
    assert sequences
    assert all(re.fullmatch(r"\x1b\[[\d;]*", sequence) for sequence in sequences)


def test_nothing_measured() -> None:
    assert show([]) == "Nothing has been measured.\n"


def test_a_survey_without_cells(make: object) -> None:
    assert "0 cells: no cells" in show([make(cells=())])  # type: ignore[operator]
