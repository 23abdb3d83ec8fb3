"""The matrix on a terminal: what comes first, and that it fits and obeys any terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from amp_matrix.plan import Plan, Rejection
from amp_matrix.render import terminal
from amp_matrix.render.words import LOOKS
from amp_matrix.survey import Cell, Stage, Status, Survey, conclude

WIDTHS = (40, 60, 80, 120, 200)

Make = Callable[..., Survey]


def show(surveys: Iterable[Survey], plans: Iterable[Plan] = (), width: int = 80, **options: object) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False, **options)  # type: ignore[arg-type]
    console.print(terminal.matrix(surveys, plans))
    return out.getvalue()


def show_part(surveys: Iterable[Survey], coverage: Iterable[Survey], plans: Iterable[Plan] = ()) -> str:
    out = io.StringIO()
    Console(file=out, width=80, force_terminal=False).print(terminal.matrix(surveys, plans, coverage=coverage))
    return out.getvalue()


def cell(probe: str, precision: str, *stages: Stage, variant: str = "base") -> Cell:
    outcome = conclude(stages or (Stage(name="infer"),))
    return Cell(probe=probe, variant=variant, precision=precision, tier="essential", revision=1, outcome=outcome)


def test_the_verdict_follows_the_devices_and_rejections_follow_it(survey: Survey, plans: tuple[Plan, ...]) -> None:
    lines = show([survey], plans).splitlines()
    assert lines[0] == "cpu (Intel Xeon, AVX512, torch 2.13.0)"
    assert lines[1] == "cpu: train in bf16-mixed, 2.1x to 2.4x fp32"
    assert lines[2] == "mps: infer in fp32, the fallback: nothing is known about mps"
    rejection = lines.index("  not fp16-mixed: op.softmax@fp16-mixed is nonfinite: NaN in 3 of 64 outputs")
    assert rejection < next(i for i, line in enumerate(lines) if line.startswith("  softmax"))


def test_rejections_alike_are_one_line_for_all_tasks(survey: Survey, plans: tuple[Plan, ...]) -> None:
    unknown = [Rejection(p, f"copy.roundtrip@{p}", "unknown", "never measured") for p in ("tf32", "bf16-true")]
    plan = msgspec.structs.replace(plans[1], device="cpu", rejected=tuple(unknown))
    text = show([survey], [plan, msgspec.structs.replace(plan, task="train")])
    assert text.count("not tf32") == 1
    assert "\ncpu, to infer or train\n" in text
    assert "\n  not tf32, bf16-true: copy.roundtrip never measured\n" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_the_width(survey: Survey, plans: tuple[Plan, ...], width: int) -> None:
    lines = show([survey], plans, width).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert any("softmax" in line and "∞ nonfin" in line for line in lines)


def test_eighty_columns_hold_five_precisions_in_one_table(survey: Survey) -> None:
    row = next(line for line in show([survey]).splitlines() if line.startswith("  softmax "))
    assert row.split() == ["softmax", "✓", "ok", "✓", "ok", "∞", "nonfinite", "✓", "ok", "·"]


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
    text = show([large])
    assert re.search(r"^op  48\d of 500 rows ok throughout$", text, re.MULTILINE)
    assert "✓ ok          ran" in text
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
    assert re.search(r"^  softmax .* \.$", text, re.MULTILINE), "not asked"


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
    assert "  0 cells: no cells\n" in show([make(cells=())])  # type: ignore[operator]


def test_every_finding_says_why(survey: Survey) -> None:
    lines = show([survey], width=120).splitlines()
    essential, stress = (lines.index(f"Findings in {tier} cells") for tier in ("essential", "stress"))
    assert lines[essential + 1] == "  op.matmul[k1000]@fp16-mixed: crash in forward: SIGSEGV"
    assert "  scaler.lifecycle@fp16-mixed: timeout in step: over 10 s" in lines[essential:stress]
    assert "  autocast.applies@bf16-mixed: inert in matmul: float32 out" in lines[essential:stress]
    assert "  op.lstm@fp16-mixed: error in forward: x" in lines[stress:]
    assert not [line for line in lines if "@tf32:" in line], "a uniform precision has its reason in one line"


def test_findings_that_differ_in_precision_alone_are_one(make: Make) -> None:
    def refused(precision: str, dtype: str, variant: str) -> Cell:
        stage = Stage(name="infer", status=Status.ERROR, reason=f"got Float and {dtype}")
        return cell("op.bmm", precision, stage, variant=variant)

    cells = [
        refused(precision, dtype, variant)
        for variant in ("base", "row")
        for precision, dtype in (("fp16-true", "Half"), ("bf16-mixed", "BFloat16"))
    ]
    text = show([make(cells=tuple(cells))])
    assert "\n  op.bmm@bf16-mixed, fp16-true: error in infer: got Float and BFloat16\n" in text
    assert text.count("op.bmm[row]@bf16-mixed, fp16-true:") == 1


def test_forty_findings_and_the_count_of_the_others(large: Survey) -> None:
    lines = show([large], width=120).splitlines()
    assert sum("nonfinite in forward: NaN" in line for line in lines) == 40
    rows = len({cell.id.partition("@")[0] for cell in large.cells if cell.outcome.status is Status.NONFINITE})
    assert f"  and {rows - 40} more: amp-probe report --html" in lines


def test_wrapped_lines_keep_their_indent(survey: Survey, plans: tuple[Plan, ...]) -> None:
    plan = msgspec.structs.replace(plans[0], reason="every word of it " * 12, caveats=("a caveat of words " * 10,))
    lines = show([survey], [plan]).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  every word"))
    assert lines[start + 1].startswith("    ")
    assert lines[start + 2].startswith("    ")
    start = next(i for i, line in enumerate(lines) if line.startswith("  caveat: a caveat"))
    assert lines[start + 1].startswith("    ")


def test_five_caveats_a_line_each_and_the_count_of_the_others(survey: Survey, plans: tuple[Plan, ...]) -> None:
    def caveats(count: int) -> list[str]:
        plan = msgspec.structs.replace(plans[0], caveats=tuple(f"op.x{i}@fp32: error" for i in range(count)))
        return [line for line in show([survey], [plan]).splitlines() if "caveat" in line]

    five = [f"  caveat: op.x{i}@fp32: error" for i in range(5)]
    assert caveats(5) == five
    assert caveats(6) == [*five, "  and 1 more caveat"]
    assert caveats(8) == [*five, "  and 3 more caveats"]


def test_a_device_is_named_in_full_once(survey: Survey, plans: tuple[Plan, ...]) -> None:
    assert show([survey], plans).count("Intel Xeon") == 1


def test_two_environments_of_a_device_are_told_apart(several: tuple[Survey, ...], plans: tuple[Plan, ...]) -> None:
    text = show(several, plans)
    assert "cpu (Intel Xeon, AVX512, torch 2.13.0)\ncpu (Intel Xeon, AVX512, torch 2.12.0)\n" in text
    assert "\ncuda:0 (NVIDIA H200, torch 2.13.0)\n" in text
    assert "\ncpu (torch 2.12.0)\n  " in text


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_word_of_a_status_is_cut(survey: Survey, large: Survey, width: int) -> None:
    text = show([survey, large], width=width)
    found = {word for line in text.splitlines() for word in re.findall(r"[◐–○≠∞✗◷†∅◌] ([\w.]+)", line)}
    words = {look.word.split()[0] for look in LOOKS.values()} | {look.short.split()[0] for look in LOOKS.values()}
    assert found <= words | {"bfloat16"}
    for look in LOOKS.values():
        if look.short != look.word and re.search(rf"{look.icon} {re.escape(look.short)} ", text):
            assert re.search(rf"^{look.icon} {re.escape(look.short)} +{look.word}: ", text, re.MULTILINE)


def test_a_label_too_long_for_its_column_has_its_own_line(make: Make) -> None:
    variant = "v" * 60
    precisions = ("fp32", "bf16-mixed", "fp16-mixed", "bf16-true")
    lines = show([make(cells=tuple(cell("op.softmax", p, variant=variant) for p in precisions))]).splitlines()
    at = lines.index(f"  softmax [{variant}]")
    assert lines[at + 1].split() == ["✓", "ok"] * 4


def test_blanks_are_told_from_what_was_filtered_out(survey: Survey) -> None:
    filtered = msgspec.structs.replace(
        survey, cells=tuple(c for c in survey.cells if c.outcome.status is Status.NONFINITE)
    )
    whole, part = show([survey]), show_part([filtered], [survey])
    assert re.search(r"^  softmax .* ·$", whole, re.MULTILINE)
    assert "\n· not asked" in whole
    assert re.search(r"^  softmax +∞ nonfinite$", part, re.MULTILINE)
    assert "not asked" not in part
    assert f"  1 of {len(survey.cells)} cells: 1 nonfinite\n" in part


def test_a_filter_changes_neither_what_was_measured_nor_the_verdict(survey: Survey, plans: tuple[Plan, ...]) -> None:
    nothing = msgspec.structs.replace(survey, cells=())
    text = show_part([nothing], [survey], plans)
    assert text.splitlines()[:4] == show([survey], plans).splitlines()[:4]
    assert "Measured: nothing" not in text
    assert f"  none of {len(survey.cells)} cells\n" in text


def test_a_precision_of_one_cell_is_no_plural(make: Make) -> None:
    refused = cell("op.softmax", "tf32", Stage(name="build", status=Status.UNSUPPORTED, reason="no"))
    assert "  tf32: unsupported in its 1 cell: no\n" in show([make(cells=(refused,))])


def test_speeds_are_always_shown_as_intervals(timed: Survey) -> None:
    text = show([timed], width=100)
    assert "op  500 of 500 rows ok throughout" in text
    assert re.search(r"^  infer +✓ 1.0x +✓ 1.5x to 1.9x +◐ emulated 0.06x to 0.7x$", text, re.MULTILINE)
    legend = "1.5x to 1.9x: times fp32's speed, interval of interleaved repeats on 1 thread"
    assert text.splitlines()[-1] == legend
    narrow = show([timed], width=46)
    assert re.search(r"^  infer +✓ 1.0x +✓ 1.5-1.9x +◐ 0.06-0.7x$", narrow, re.MULTILINE)
    assert "\n1.5-1.9x: times" in narrow


def test_the_legend_explains_variants_tiers_and_eps_in_three_lines(survey: Survey) -> None:
    lines = show([survey]).splitlines()
    assert lines[-3].startswith("[variant]: ")
    assert lines[-2] == "essential: met by every model; stress: edge regimes; eps: the dtype's finfo.eps"
    assert lines[-1].startswith("1.5x to 1.9x: ")


def test_a_simulated_survey_shows_the_dtypes_seen(simulated: Survey) -> None:
    text = show([simulated])
    assert re.search(r"^  policy +◌ fp32/bf16 +◌ fp32/fp16$", text, re.MULTILINE)
    assert "  autocast.policy@bf16-mixed\n    enter: bfloat16 from autocast\n" in text
    assert "    float32: bfloat16 from linear, matmul; float32 from exp0, exp1," in text
    assert "Findings" not in text
