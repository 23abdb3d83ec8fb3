"""Surveys as blocks: which cells count, which rows and columns there are, and in what order."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from amp_matrix.plan import Gain, Plan, Rejection
from amp_matrix.render.grid import blocks, parts, short_names
from amp_matrix.render.verdict import measured, verdicts
from amp_matrix.survey import Outcome, Stage, Status, Survey, not_run


def test_a_block_a_device_and_environment(several: tuple[Survey, ...]) -> None:
    assert [block.title for block in blocks(several)] == [
        "cpu (Intel Xeon, AVX512, torch 2.13.0)",
        "cpu (Intel Xeon, AVX512, torch 2.12.0)",
        "cuda:0 (NVIDIA H200, torch 2.13.0)",
        "mps (Apple M2, macOS 15.1, torch 2.13.0)",
    ]


def test_the_newest_survey_counts(make: Callable[..., Survey]) -> None:
    old = make(started="2026-01-01T00:00:00Z")
    crash = Stage(name="forward", status=Status.CRASH)
    broken = Outcome(status=Status.CRASH, stage="forward", stages=(crash,))
    new = make(cells=(msgspec.structs.replace(old.cells[0], outcome=broken),))
    (block,) = blocks([new, old])
    assert len(block.surveys) == 2
    found = {cell.id: cell.outcome.status for cell in block.cells}
    assert found[old.cells[0].id] is Status.CRASH
    assert found[old.cells[1].id] is Status.OK


def test_a_precision_that_is_refused_everywhere_is_a_line_and_no_column(survey: Survey) -> None:
    (block,) = blocks([survey])
    assert [(u.precision, u.status, u.reason, u.count) for u in block.uniform] == [
        ("tf32", Status.UNSUPPORTED, "TF32 exists on cuda only", 2)
    ]
    assert block.columns == ("fp32", "bf16-mixed", "fp16-mixed", "bf16-true", "fp16-true")


def test_a_precision_that_fails_everywhere_keeps_its_column(make: Callable[..., Survey], survey: Survey) -> None:
    crashed = [c for c in survey.cells if c.outcome.status is Status.CRASH]
    (block,) = blocks([make(cells=tuple(crashed))])
    assert block.columns == ("fp16-mixed",)
    assert not block.uniform


def test_variants_follow_their_base(survey: Survey) -> None:
    (block,) = blocks([survey])
    (train,) = (family for family in block.families if family.name == "train")
    assert [row.label for row in train.rows] == ["mlp", "mlp [large]", "mlp [row]"]


def test_what_was_measured_is_told_apart_from_what_was_not(several: tuple[Survey, ...]) -> None:
    line = measured(blocks(several[2:]))
    assert line.startswith("Measured: cuda:0 (NVIDIA H200, torch 2.13.0), ")
    assert line.endswith(" Not measured: cpu, xpu.")


def test_cells_that_did_not_run_were_not_measured(make: Callable[..., Survey], survey: Survey) -> None:
    absent = not_run("no NVIDIA driver", "device_missing")
    cells = tuple(msgspec.structs.replace(cell, outcome=absent, evidence="measured") for cell in survey.cells[:3])
    line = measured(blocks([make(device="cuda:0", cells=cells)]))
    assert line == "Measured: nothing. Not measured: cpu, cuda, mps, xpu."


def test_simulated_and_claimed_cells_were_not_measured(make: Callable[..., Survey], survey: Survey) -> None:
    cells = tuple(cell for cell in survey.cells if cell.evidence != "measured")
    assert len(cells) == 2
    assert measured(blocks([make(cells=cells)])).startswith("Measured: nothing.")


def test_a_verdict_says_device_hardware_task_precision_and_gain(survey: Survey, plans: tuple[Plan, ...]) -> None:
    chosen, fallback = verdicts(plans, blocks([survey]))
    assert chosen.sentence == "cpu (Intel Xeon, AVX512, torch 2.13.0): train in bf16-mixed, 2.1x to 2.4x fp32"
    assert chosen.rejected[0].cell == "op.softmax@fp16-mixed"
    assert fallback.sentence == "mps: infer in fp32, the fallback: nothing is known about mps"


def test_an_fp8_recipe_and_an_equal_gain(survey: Survey, plans: tuple[Plan, ...]) -> None:
    plan = msgspec.structs.replace(plans[0], fp8="te-mxfp8", gain=Gain(3.0, 3.01))
    (verdict,) = verdicts([plan], blocks([survey]))
    assert verdict.sentence.endswith(": train in bf16-mixed+te-mxfp8, 3.0x fp32")


def test_a_verdict_without_evidence_names_no_hardware_where_there_are_two(
    several: tuple[Survey, ...], plans: tuple[Plan, ...]
) -> None:
    fallback = msgspec.structs.replace(plans[1], device="cpu")
    (verdict,) = verdicts([fallback], blocks(several))
    assert verdict.sentence == "cpu: infer in fp32, the fallback: nothing is known about mps"


def test_plans_that_read_the_same_are_said_once(several: tuple[Survey, ...], plans: tuple[Plan, ...]) -> None:
    older = msgspec.structs.replace(plans[1], prefer="speed")
    assert len(verdicts([plans[1], older, plans[0]], blocks(several))) == 2


def test_a_rejection_says_cell_and_status_once(survey: Survey, plans: tuple[Plan, ...]) -> None:
    blocked = Rejection("fp16-mixed", "op.gelu@fp16-mixed", "error", "op.gelu@fp16-mixed is error in forward: KeyError")
    eligible = Rejection("bf16-true", "", "ok", "eligible, 1.9x; bf16-mixed was faster")
    plan = msgspec.structs.replace(plans[0], rejected=(blocked, eligible))
    (verdict,) = verdicts([plan], blocks([survey]))
    assert [r.line for r in verdict.rejected] == [
        "op.gelu@fp16-mixed is error in forward: KeyError",
        "eligible, 1.9x; bf16-mixed was faster",
    ]
    assert verdict.sentence.endswith("2.1x to 2.4x fp32; bf16-true works too")


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        (Gain(0.8, 0.9), "(0.8x to 0.9x fp32)"),
        (Gain(0.5, 3.9), "(about 0.5x to 3.9x fp32)"),
        (Gain(1, 1), "(1.0x fp32)"),
    ],
)
def test_what_works_too_is_said_with_its_speed(survey: Survey, plans: tuple[Plan, ...], gain: Gain, said: str) -> None:
    plan = msgspec.structs.replace(plans[0], rejected=(Rejection("bf16-true", "", "ok", "eligible", gain),))
    (verdict,) = verdicts([plan], blocks([survey]))
    assert verdict.sentence.endswith(f"; bf16-true {said} works too")


@pytest.mark.parametrize(
    ("cell", "status", "reason"),
    [
        ("op.gelu@tf32", "unsupported", "op.gelu@tf32 is unsupported in build: TF32 is of CUDA"),
        ("op.gelu@tf32", "crash", "op.gelu@tf32 is crash: SIGILL"),
        ("op.gelu@tf32", "not_run", "op.gelu@tf32 was not run: out of memory"),
        ("op.gelu@tf32", "unknown", "op.gelu@tf32 was never measured here; run amp-probe run --device cpu"),
        ("speed.infer@tf32", "emulated", "eligible, but speed.infer@tf32 is emulated in time: 0.4 times"),
        ("", "ok", "eligible; bf16-mixed was faster"),
    ],
)
def test_a_rejection_reads_as_choose_says_it(
    survey: Survey, plans: tuple[Plan, ...], cell: str, status: str, reason: str
) -> None:
    plan = msgspec.structs.replace(plans[0], rejected=(Rejection("tf32", cell, status, reason),))
    (verdict,) = verdicts([plan], blocks([survey]))
    assert verdict.rejected[0].line == reason


def test_a_verdict_names_the_hardware_that_it_rests_on(several: tuple[Survey, ...], plans: tuple[Plan, ...]) -> None:
    grid = blocks(several)
    evidence = msgspec.structs.replace(plans[0].evidence, survey=grid[1].surveys[0])
    (verdict,) = verdicts([msgspec.structs.replace(plans[0], evidence=evidence)], grid)
    assert "torch 2.12.0" in verdict.sentence


def test_a_part_keeps_the_cells_that_count(make: Callable[..., Survey]) -> None:
    old = make(started="2026-01-01T00:00:00Z")
    broken = [c for c in old.cells if c.outcome.status is Status.CRASH]
    mended = tuple(msgspec.structs.replace(c, outcome=old.cells[0].outcome) for c in broken)
    whole = blocks([old, make(cells=mended)])
    (part,) = parts([msgspec.structs.replace(old, cells=tuple(broken))], whole)
    assert broken
    assert part.cells == [], "a filter brings back nothing that newer evidence replaced"
    assert part.surveys == whole[0].surveys


def test_a_part_knows_what_is_uniform_in_the_whole(survey: Survey) -> None:
    refused = [c for c in survey.cells if c.outcome.status is Status.UNSUPPORTED]
    (part,) = parts([msgspec.structs.replace(survey, cells=tuple(refused))], blocks([survey]))
    assert [(u.precision, u.count) for u in part.uniform] == [("tf32", 2)]
    assert part.columns == ("fp16-mixed",), "its one cell is refused, and others that are not shown are not"
    assert part.tally == f"3 of {len(survey.cells)} cells: 3 unsupported"


def test_no_survey_is_no_part(several: tuple[Survey, ...]) -> None:
    assert [block.device for block in parts(several[3:], blocks(several))] == ["mps"]


def test_reasons_of_a_uniform_precision_are_counted(make: Callable[..., Survey], survey: Survey) -> None:
    cells = [c for c in survey.cells if c.precision == "tf32"]
    other = msgspec.structs.replace(cells[0], variant="row", outcome=not_run("out of memory", "out_of_memory"))
    again = msgspec.structs.replace(other, variant="large", outcome=not_run("filtered", "filtered"))
    third = msgspec.structs.replace(other, variant="odd")
    (block,) = blocks([make(cells=(other, again, third))])
    assert block.uniform[0].line == "not run in all 3 cells: out of memory (and 1 other reason)"


def test_names_are_short_where_they_are_sure(several: tuple[Survey, ...], make: Callable[..., Survey]) -> None:
    assert list(short_names(blocks(several)).values()) == ["cpu (torch 2.13.0)", "cpu (torch 2.12.0)", "cuda:0", "mps"]
    hidden = msgspec.structs.replace(several[0].environment, identity={"device": "cpu", "blas": "mkl"})
    alike = msgspec.structs.replace(hidden, identity={"device": "cpu", "blas": "openblas"})
    names = short_names(blocks([make(environment=hidden), make(environment=alike)]))
    assert names == {"cpu (Intel Xeon)": "cpu (Intel Xeon)"}
