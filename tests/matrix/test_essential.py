"""The list of essential cells, and what keeps a cell from vouching for its precision."""

from __future__ import annotations

import msgspec
import pytest
from evidence import NOW, cell, elsewhere, failing, known, made, survey

from amp_matrix import cell_id, essential
from amp_matrix.matrix import select
from amp_matrix.precision import COMPUTES
from amp_matrix.survey import Outcome, Stage, Status

SOFTMAX = "op.softmax@bf16-mixed"


def ids(task: str, precision: str) -> list[str]:
    return [e.cell for e in essential.cells(task, precision)]  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", COMPUTES)
def test_train_asks_for_all_that_infer_asks_for(precision: str) -> None:
    infer, train = ids("infer", precision), ids("train", precision)
    assert train[: len(infer)] == infer
    assert len(train) > len(infer)


@pytest.mark.parametrize("precision", COMPUTES)
@pytest.mark.parametrize("task", essential.TASKS)
def test_every_id_is_a_cell_id_of_its_precision_and_stands_once(task: str, precision: str) -> None:
    names = ids(task, precision)
    assert len(set(names)) == len(names)
    assert all(str(cell_id.parse(name)) == name for name in names)
    assert all(name.endswith(f"@{precision}") for name in names)


@pytest.mark.parametrize(
    ("name", "precisions"),
    [
        ("autocast.applies[linear]", {"bf16-mixed", "fp16-mixed"}),
        ("scaler.lifecycle[adamw]", {"fp16-mixed"}),
        ("optim.tiny_update", {"bf16-true", "fp16-true"}),
        ("op.matmul[k1000]", set(COMPUTES)),
        ("train.transformer", set(COMPUTES)),
    ],
)
def test_a_cell_is_asked_for_where_it_means_something(name: str, precisions: set[str]) -> None:
    assert {p for p in COMPUTES if f"{name}@{p}" in ids("train", p)} == precisions


def test_tiers() -> None:
    assert essential.tier("op.attention[q1]@fp32") == "essential"
    assert essential.tier("optim.tiny_update@bf16-true") == "essential"
    assert essential.tier("optim.tiny_update@bf16-mixed") == "stress"
    assert essential.tier("op.softmax[large]@fp32") == "stress"
    assert essential.tier("speed.train_step@bf16-mixed") == "stress"


def test_a_recipe_has_no_essential_cells_and_is_therefore_blocked() -> None:
    assert essential.cells("train", "bf16-mixed+te-mxfp8") == ()
    stop = essential.first_blocker(known(), "bf16-mixed+te-mxfp8", "train", NOW)
    assert stop is not None
    assert stop.status == "unknown"


@pytest.mark.parametrize("precision", COMPUTES)
@pytest.mark.parametrize("task", essential.TASKS)
def test_nothing_blocks_where_everything_works(task: str, precision: str) -> None:
    assert essential.first_blocker(known(), precision, task, NOW) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.OK])
def test_anything_but_ok_blocks(status: Status) -> None:
    stop = essential.first_blocker(known(failing(SOFTMAX, status)), "bf16-mixed", "train", NOW)
    assert stop is not None
    assert (stop.cell, stop.status) == (SOFTMAX, str(status))


def test_the_first_in_the_list_blocks() -> None:
    facts = known(failing("train.mlp@bf16-mixed", Status.CRASH), failing(SOFTMAX, Status.ERROR, "no\nkernel"))
    stop = essential.first_blocker(facts, "bf16-mixed", "train", NOW)
    assert stop is not None
    assert stop.reason == f"{SOFTMAX} is error in forward: no kernel"


def test_what_was_never_measured_blocks_and_says_how() -> None:
    stop = essential.first_blocker(known(without=(SOFTMAX,)), "bf16-mixed", "train", NOW)
    assert stop == essential.Blocker(
        SOFTMAX, "unknown", f"{SOFTMAX} was never measured here; run amp-probe run --device cpu"
    )


def test_a_claim_blocks() -> None:
    stop = essential.first_blocker(known(cell(SOFTMAX, evidence="claimed")), "bf16-mixed", "train", NOW)
    assert stop is not None
    assert stop.reason.startswith(f"{SOFTMAX} was only claimed, never measured here")


def test_a_simulated_cell_blocks() -> None:
    facts = known(made(SOFTMAX, Outcome(status=None), evidence="simulated"))
    stop = essential.first_blocker(facts, "bf16-mixed", "train", NOW)
    assert stop is not None
    assert stop.status == "unknown"


@pytest.mark.parametrize("revision", [0, 2])
def test_another_revision_blocks(revision: int) -> None:
    stop = essential.first_blocker(known(cell(SOFTMAX, revision=revision)), "bf16-mixed", "train", NOW)
    assert stop is not None
    assert f"by revision {revision} of its probe, and revision 1 counts" in stop.reason


def test_another_identity_blocks_even_where_nobody_selected() -> None:
    stop = essential.first_blocker(known(), "bf16-mixed", "train", elsewhere(torch="2.14.0"))
    assert stop is not None
    assert "torch 2.13.0+cpu then, 2.14.0 now" in stop.reason


@pytest.mark.parametrize(
    ("field", "blocked"),
    [
        ("float32_matmul_precision", {"fp32"}),
        ("fp32_precision", {"fp32", "tf32"}),
        ("allow_fp16_accumulation", {"fp16-mixed", "fp16-true"}),
    ],
)
def test_a_scoped_field_blocks_the_precisions_that_it_can_change(field: str, blocked: set[str]) -> None:
    now = msgspec.structs.replace(NOW, scoped=NOW.scoped | {field: "other"})
    found = {p for p in COMPUTES if essential.first_blocker(known(), p, "train", now)}
    assert found == blocked


def test_a_scoped_field_that_one_side_lacks_blocks() -> None:
    now = msgspec.structs.replace(NOW, scoped={})
    stop = essential.first_blocker(known(), "fp32", "train", now)
    assert stop is not None
    assert "under other settings: float32_matmul_precision" in stop.reason


def test_a_recorded_field_blocks_nothing() -> None:
    now = msgspec.structs.replace(NOW, recorded={"python": "3.13.1"})
    assert essential.first_blocker(known(), "fp32", "train", now) is None


def test_the_nearest_other_survey_says_what_changed() -> None:
    others = [
        survey(cell(SOFTMAX), environment=elsewhere(torch="2.11.0", os="Darwin")),
        survey(cell(SOFTMAX), environment=elsewhere(torch="2.12.0")),
        survey(cell(SOFTMAX), environment=elsewhere(device="mps")),
        survey(failing(SOFTMAX, Status.NOT_RUN), environment=elsewhere(os="Linux")),
    ]
    stop = essential.first_blocker(known(without=(SOFTMAX,)), "bf16-mixed", "train", NOW, others=others)
    assert stop is not None
    assert stop.reason == (
        f"{SOFTMAX} was measured, but torch 2.12.0 then, 2.13.0+cpu now; run amp-probe run --device cpu"
    )


def test_a_failing_backward_blocks_training_alone() -> None:
    facts = known(cell(SOFTMAX, Stage("infer"), Stage("forward"), Stage("backward", Status.INACCURATE, reason="off")))
    assert essential.first_blocker(facts, "bf16-mixed", "infer", NOW) is None
    stop = essential.first_blocker(facts, "bf16-mixed", "train", NOW)
    assert stop is not None
    assert stop.reason == f"{SOFTMAX} is inaccurate in backward: off"


@pytest.mark.parametrize("stage", ["build", "infer"])
def test_a_stage_up_to_infer_blocks_inferring(stage: str) -> None:
    stages = [Stage(name, Status.NONFINITE if name == stage else Status.OK) for name in ("build", "infer", "forward")]
    assert essential.first_blocker(known(cell(SOFTMAX, *stages)), "bf16-mixed", "infer", NOW) is not None


def test_a_cell_without_an_infer_stage_counts_whole() -> None:
    facts = known(cell(SOFTMAX, Stage("forward"), Stage("backward", Status.TIMEOUT)))
    assert essential.first_blocker(facts, "bf16-mixed", "infer", NOW) is not None


def test_an_infer_stage_without_a_status_is_unknown() -> None:
    facts = known(cell(SOFTMAX, Stage("infer", None), Stage("forward")))
    assert essential.first_blocker(facts, "bf16-mixed", "infer", NOW) is not None


def test_needs_are_asked_for_after_the_essential_cells() -> None:
    facts = known(failing("op.lstm@bf16-mixed", Status.CRASH))
    assert essential.first_blocker(facts, "bf16-mixed", "train", NOW) is None
    stop = essential.first_blocker(facts, "bf16-mixed", "train", NOW, needs=("op.softmax", "op.lstm"))
    assert stop is not None
    assert stop.cell == "op.lstm@bf16-mixed"


def test_a_need_that_was_never_measured_names_its_probe() -> None:
    stop = essential.first_blocker(known(), "bf16-mixed", "train", NOW, needs=("op.conv2d[channels_last]",))
    assert stop is not None
    assert stop.reason.endswith("was never measured here; run amp-probe run --suite core --device cpu")


def test_a_later_untried_cell_does_not_hide_evidence() -> None:
    later = survey(failing(SOFTMAX, Status.NOT_RUN), started="2026-02-01T08:00:00Z")
    facts = select([survey(*(k.cell for k in known().values())), later], NOW.identity)
    assert essential.first_blocker(facts, "bf16-mixed", "train", NOW) is None
