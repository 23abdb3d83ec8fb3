"""A device that is not here: what fake tensors and the dispatcher say of its autocast, and who must never use it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from quiet import Quiet

from amp_matrix import codec, environment, essential
from amp_matrix.cell_id import parse as parse_cell
from amp_matrix.decide import decide, seconds_of
from amp_matrix.environment import identity_key
from amp_matrix.matrix import select
from amp_matrix.precision import parse
from amp_matrix.store import Store
from amp_matrix.survey import Cell, Outcome, Stage, Survey
from amp_probe import policy, simulate, simulation
from amp_probe.draw import Draw
from amp_probe.probes import autocast_policy
from amp_probe.request import SIMULATED
from amp_probe.run import Options, RunError

MIXED = ("bf16-mixed", "fp16-mixed")
LOW = ("mm", "linear", "bmm", "conv2d", "einsum", "addmm", "matmul", "conv_transpose2d")
WIDE = ("softmax", "layer_norm", "sum", "exp", "pow", "norm", "mse_loss", "cumsum", "cross_entropy")
RunCase = Callable[..., Outcome]


def outcome(kind: str, precision: str = "bf16-mixed") -> Outcome:
    return simulate.outcome(kind, parse(precision), lambda name: None)


def stage(found: Outcome, name: str) -> Stage:
    return next(s for s in found.stages if s.name == name)


def autocast_state(kind: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)


# --- what is simulated


@pytest.mark.parametrize("precision", MIXED)
def test_fake_tensors_say_of_a_cpu_what_a_cpu_does(run_case: RunCase, precision: str) -> None:
    """Where both answer, they agree: the one device on which the simulation can be held against the truth here."""
    (probe,) = autocast_policy.PROBES
    draw = Draw(probe.name)
    measured, faked = run_case(probe.make(draw), draw, precision), outcome("cpu", precision)
    for inputs in policy.INPUTS:
        real, fake = stage(measured, inputs).dtypes, stage(faked, inputs).dtypes
        answered = {name for name, dtype in fake.items() if dtype != simulate.UNKNOWN}
        assert {name: real[name] for name in answered} == {name: fake[name] for name in answered}
        assert len(answered) >= 0.9 * len(real)


@pytest.mark.parametrize("kind", SIMULATED)
@pytest.mark.parametrize("precision", MIXED)
def test_what_every_accelerators_policy_is(kind: str, precision: str) -> None:
    low, found = parse(precision).dtype, outcome(kind, precision)
    untold = {simulate.UNKNOWN}  # torch 2.5 cannot fake cuda's convolutions, nor mps's nll_loss
    assert {stage(found, "float32").dtypes[name] for name in LOW} - untold == {low}
    assert {stage(found, "low").dtypes[name] for name in WIDE} - untold == {"float32"}
    assert stage(found, "low").dtypes["gelu"] == low
    assert stage(found, "both").dtypes["cat"] == "float32"


def test_the_refusal_of_bce_is_told_from_what_fake_tensors_cannot_do() -> None:
    """pytorch#61098: cuda and xpu refuse it, mps does not."""
    found = {kind: stage(outcome(kind), "float32").dtypes["binary_cross_entropy"] for kind in SIMULATED}
    assert found == {"mps": "float32", "cuda": policy.REFUSED, "xpu": policy.REFUSED}


def test_a_simulated_outcome_has_no_status_and_says_what_each_gap_was() -> None:
    found = outcome("mps")
    assert found.status is None
    assert {s.status for s in found.stages} == {None}
    assert [s.name for s in found.stages] == ["enter", *policy.INPUTS, "registrations"]
    gaps = [name for name, dtype in stage(found, "low").dtypes.items() if dtype == simulate.UNKNOWN]
    assert all(any(note.startswith(f"{name}, low: ") for note in found.notes) for name in gaps)


@pytest.mark.parametrize("kind", SIMULATED)
def test_registrations_are_counted_and_listed(kind: str) -> None:
    found = outcome(kind)
    names = simulate.registrations(kind)
    assert stage(found, "registrations").numbers == {"registered": float(len(names))}
    assert 80 < len(names) < 160
    listed = " ".join(found.notes).split()
    assert set(names) <= set(listed)
    assert {"mm", "softmax.int"} <= set(names)


@pytest.mark.parametrize("kind", SIMULATED)
def test_simulating_leaves_autocast_as_it_was(kind: str) -> None:
    before = autocast_state(kind)
    outcome(kind, "fp16-mixed")
    assert autocast_state(kind) == before
    with suppress(LookupError), simulate.autocast_on(kind, torch.float16):
        assert autocast_state(kind) == (True, torch.float16)
        raise LookupError
    assert autocast_state(kind) == before


# --- what torch.autocast itself says


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_autocast_that_turns_itself_off_is_recorded_and_the_policy_known_all_the_same() -> None:
    found = outcome("cuda")
    assert stage(found, "enter").code == "autocast_off"
    assert "CUDA is not available" in stage(found, "enter").reason
    assert stage(found, "float32").dtypes["mm"] == "bfloat16"


def test_a_refusal_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch 2.6 to 2.9 do with bfloat16 on mps (pytorch#139190)."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise RuntimeError("Cannot execute isOnMacOSorNewer() without MPS backend.")

    monkeypatch.setattr(torch, "autocast", refuse)
    found = outcome("mps")
    assert stage(found, "enter").code == "refused"
    assert "isOnMacOSorNewer" in stage(found, "enter").reason
    assert stage(found, "float32").dtypes["mm"] == "bfloat16"


# --- the survey


def run(tmp_path: Path, kind: str = "mps", **options: Any) -> Survey:
    return simulation.simulate(kind, Options(store=tmp_path / "store", **options), Quiet())


def test_a_survey_says_that_it_is_simulated_and_is_stored(tmp_path: Path) -> None:
    survey = run(tmp_path)
    assert [(c.id, c.evidence, c.outcome.status) for c in survey.cells] == [
        ("autocast.policy@bf16-mixed", "simulated", None),
        ("autocast.policy@fp16-mixed", "simulated", None),
    ]
    identity = survey.environment.identity
    assert (identity["device"], identity["torch"], identity["simulated"]) == ("mps", torch.__version__, "yes")
    assert survey.environment.recorded["simulated"].startswith("simulated on ")
    assert Store(tmp_path / "store").load().surveys == (survey,)
    assert codec.decode(codec.encode(survey), "survey") == (survey,)


def test_only_mixed_precisions_have_a_policy(tmp_path: Path) -> None:
    assert [c.precision for c in run(tmp_path, precisions=("fp16-mixed", "fp32")).cells] == ["fp16-mixed"]
    with pytest.raises(RunError, match="mixed"):
        run(tmp_path, precisions=("bf16-true",))


def test_a_worker_that_a_fake_tensor_kills_costs_its_answer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As batch norm on fake mps does; here in float16 alone."""
    (tmp_path / "aborting_policy.py").write_text(
        "import os, torch\n"
        "from amp_probe import policy\n"
        "policy.OPERATORS['abort'] = policy.Operator(lambda x: os.abort() if x.dtype == torch.float16 else x)\n"
        "PROBES = ()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    bf16, fp16 = run(tmp_path, modules=("aborting_policy",)).cells
    assert stage(bf16.outcome, "low").dtypes["abort"] == "bfloat16"
    assert (fp16.evidence, fp16.outcome.status, fp16.outcome.code) == ("simulated", None, "crash")
    assert fp16.outcome.stage == "low"
    assert "SIGABRT" in fp16.outcome.reason


def test_no_choice_rests_on_a_simulation(tmp_path: Path) -> None:
    """Not even where every essential cell was simulated in the environment of now."""
    survey = run(tmp_path, "cuda")
    (cell, *_) = survey.cells
    names = [(e.cell, e.revision) for p in ("fp32", *MIXED) for e in essential.cells("train", p)]
    cells = tuple(_renamed(cell, name, revision) for name, revision in names)
    now, known = survey.environment, select([_with(survey, cells)], survey.environment.identity)
    plan = decide(known, now, device="cuda:0", task="train", at=seconds_of(survey.started))
    assert len(known) == len(names)
    assert (plan.precision, plan.evidence) == ("fp32", None)
    assert {"bf16-mixed", "fp16-mixed"} <= {r.precision for r in plan.rejected}


def _renamed(cell: Cell, name: str, revision: int) -> Cell:
    parts = parse_cell(name)
    return Cell(
        probe=parts.probe,
        variant=parts.variant,
        precision=str(parts.precision),
        tier="essential",
        revision=revision,
        outcome=cell.outcome,
        evidence="simulated",
    )


def _with(survey: Survey, cells: tuple[Cell, ...]) -> Survey:
    return msgspec.structs.replace(survey, cells=cells)


@pytest.mark.parametrize("kind", simulate.KEYS)
def test_no_real_devices_identity_is_that_of_a_simulation(kind: str) -> None:
    fields = set(environment.capture("cpu").identity)
    assert "simulated" not in fields
    simulated = simulate.environment(kind)
    assert set(simulated.identity) != fields
    assert identity_key(simulated) != identity_key(environment.capture("cpu"))


def test_every_kind_that_the_command_offers_can_be_simulated() -> None:
    assert set(SIMULATED) == set(simulation.DEVICES) < set(simulate.KEYS)


def test_a_kind_stands_for_its_first_device_and_no_document_has_a_status(tmp_path: Path) -> None:
    survey = run(tmp_path, "xpu")
    assert survey.device == "xpu:0"
    document = json.loads(codec.encode(survey))
    assert all(cell["outcome"]["status"] is None for cell in document["cells"])
