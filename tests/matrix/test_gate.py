"""The gate: what requirements and baselines find on made-up evidence."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from evidence import NOW, cell, elsewhere, failing, known, survey, timed, working

from amp_matrix import gate
from amp_matrix.gate import Finding, Place
from amp_matrix.matrix import select
from amp_matrix.requirement import parse
from amp_matrix.survey import Stage, Status

TRAIN = "cpu: bf16-mixed: train"
GELU = "op.gelu@bf16-mixed"


def place(*changes: Any, device: str = "cpu", **options: Any) -> Place:
    return Place(device, NOW, known(*changes, **options))


def judge(text: str, *places: Place, **options: Any) -> tuple[Finding, ...]:
    return gate.evaluate([parse(text)], places, **options)


def verdict(text: str, *places: Place, **options: Any) -> str:
    (finding,) = judge(text, *places, **options)
    return finding.verdict


class TestRequirements:
    @pytest.mark.parametrize(
        "text", [TRAIN, GELU, f"cpu/{GELU}", "speed.train_step@bf16-mixed >= 1.5", "cpu: tf32: infer"]
    )
    def test_what_works_is_met(self, text: str) -> None:
        (finding,) = judge(text, place())
        assert (finding.verdict, finding.device, finding.subject) == ("met", "cpu", text)
        assert not gate.failed([finding])

    @pytest.mark.parametrize("text", [TRAIN, GELU])
    def test_what_fails_names_its_cell(self, text: str) -> None:
        (finding,) = judge(text, place(failing(GELU, Status.CRASH, "SIGILL")))
        assert (finding.verdict, finding.cell, finding.status) == ("failed", GELU, "crash")
        assert finding.reason == f"{GELU} is crash in forward: SIGILL"
        assert gate.failed([finding])

    @pytest.mark.parametrize("text", [TRAIN, GELU])
    def test_what_was_never_measured_fails_and_says_how(self, text: str) -> None:
        (finding,) = judge(text, place(without=(GELU,)))
        assert (finding.verdict, finding.status) == ("failed", "unknown")
        assert finding.reason.endswith("run amp-probe run --device cpu")

    def test_what_was_measured_before_an_upgrade_says_so(self) -> None:
        then = survey(*working().values(), environment=elsewhere(torch="2.12.0"))
        (finding,) = judge(TRAIN, Place("cpu", NOW, {}, (then,)))
        assert "was measured, but torch 2.12.0 then, 2.13.0+cpu now" in finding.reason

    def test_a_stale_revision_of_an_essential_cell_fails(self) -> None:
        assert verdict(GELU, place(cell(GELU, revision=2))) == "failed"

    def test_a_cell_is_asked_for_whole(self) -> None:
        broken = cell(GELU, Stage("infer"), Stage("backward", Status.ERROR))
        assert verdict(GELU, place(broken)) == "failed"
        assert verdict("cpu: bf16-mixed: infer", place(broken)) == "met"

    def test_a_stress_cell_may_be_required(self) -> None:
        stress = "op.gelu[large]@bf16-mixed"
        assert verdict(stress, place(cell(stress, revision=7))) == "met"
        assert verdict(stress, place(failing(stress, Status.NOT_RUN))) == "failed"

    def test_every_device_of_the_kind_is_asked(self) -> None:
        places = (place(device="cuda:0"), place(failing(GELU, Status.ERROR), device="cuda:1"), place())
        found = judge("cuda: bf16-mixed: train", *places)
        assert [(f.device, f.verdict) for f in found] == [("cuda:0", "met"), ("cuda:1", "failed")]
        assert [f.device for f in judge(GELU, *places)] == ["cuda:0", "cuda:1", "cpu"]


class TestGains:
    SPEED = "speed.matmul@bf16-mixed"

    @pytest.mark.parametrize(("low", "met"), [(1.5, "met"), (1.49, "failed"), (float("nan"), "failed"), (9.0, "met")])
    def test_the_lower_bound_decides(self, low: float, met: str) -> None:
        assert verdict(f"{self.SPEED} >= 1.5", place(timed(self.SPEED, low, 10.0))) == met

    def test_a_cell_without_numbers_fails(self) -> None:
        (finding,) = judge(f"{self.SPEED} >= 1.5", place(cell(self.SPEED)))
        assert finding.reason == f"{self.SPEED} holds no measured speed"

    def test_the_reason_has_both(self) -> None:
        (finding,) = judge(f"{self.SPEED} >= 1.5", place(timed(self.SPEED, 1.2, 1.9)))
        assert (
            finding.reason
            == f"{self.SPEED} was measured at 1.20x to 1.90x fp32, and 1.5x is required of its lower bound"
        )


class TestAbsence:
    @pytest.mark.parametrize(("strict", "wanted"), [(False, "not_applicable"), (True, "failed")])
    def test_an_absent_device(self, strict: bool, wanted: str) -> None:
        (finding,) = judge("cuda: fp16-mixed: train", place(), strict=strict)
        assert (finding.verdict, finding.reason) == (wanted, "there is no cuda here")
        assert verdict("cuda:1/op.gelu@fp32", place(device="cuda:0"), strict=strict) == wanted

    @pytest.mark.parametrize("strict", [False, True])
    def test_a_marker_that_does_not_hold_excuses(self, strict: bool) -> None:
        broken = place(failing(GELU, Status.ERROR))
        assert verdict(f"{TRAIN}; torch >= '3'", broken, strict=strict) == "not_applicable"
        assert verdict(f"{TRAIN}; torch >= '2'", broken, strict=strict) == "failed"
        assert verdict("mps: fp32: train; macos >= '14.0'", broken, strict=strict) == "not_applicable"
        assert verdict("mps: fp32: train; torch >= '3'", broken, strict=strict) == "not_applicable"

    def test_the_host_says_what_an_environment_does_not(self) -> None:
        text = f"{TRAIN}; macos >= '14.0'"
        assert verdict(text, place()) == "not_applicable"
        assert verdict(text, place(), host={"macos": "14.5"}) == "met"

    def test_an_environment_says_its_versions(self) -> None:
        mps = msgspec.structs.replace(
            NOW, identity={"torch": "2.6", "macos": "14.5"}, recorded={"macos_patch": "14.5.1"}
        )
        assert gate.versions(mps) == {"torch": "2.6", "macos": "14.5.1"}
        assert gate.versions(NOW) == {"torch": "2.13.0+cpu", "python": "3.11.7"}

    def test_no_device_at_all_fails_a_cell_that_speaks_of_every_device(self) -> None:
        (finding,) = judge(GELU)
        assert finding.verdict == "failed"
        assert "run amp-probe run" in finding.reason


class TestBaseline:
    def test_every_failing_cell_is_in_it(self) -> None:
        here = place(
            failing(GELU, Status.CRASH),
            failing("op.gelu@tf32", Status.UNSUPPORTED),
            failing("op.gelu@fp32", Status.NOT_RUN),
            cell("op.mse@fp32", Stage("forward", Status.ERROR), evidence="claimed"),
        )
        assert list(gate.failing([here])) == [f"cpu/{GELU}", "cpu/op.gelu@tf32"]

    def test_what_is_unsupported_by_declaration_does_not_fail(self) -> None:
        declared = cell("op.gelu@tf32", Stage("build", Status.UNSUPPORTED, reason="off cuda", code="declared"))
        refused = cell("op.mse@tf32", Stage("build", Status.UNSUPPORTED, code="not_implemented"))
        wrong = cell("op.silu@tf32", Stage("build", Status.ERROR, code="declared"))
        assert list(gate.failing([place(declared, refused, wrong)])) == ["cpu/op.mse@tf32", "cpu/op.silu@tf32"]

    def test_only_new_ones_fail(self) -> None:
        here = place(failing(GELU, Status.CRASH, "SIGILL"), failing("op.silu@fp32", Status.ERROR))
        assert gate.against(gate.failing([here]), [here]) == ()
        (finding,) = gate.against([f"cpu/{GELU}"], [here])
        assert (finding.verdict, finding.cell, finding.status) == ("failed", "op.silu@fp32", "error")
        assert finding.reason == "op.silu@fp32 is error in forward: seen; not in the baseline"

    def test_what_was_fixed_and_what_is_gone(self) -> None:
        ids = [f"cpu/{GELU}", "cpu/op.gone@fp32", "cuda/op.gelu@fp32", "cpu/op.silu@fp32"]
        here = place(failing("op.silu@fp32", Status.NOT_RUN))
        found = {f.subject: f.verdict for f in gate.against(ids, [here])}
        assert found == {f"cpu/{GELU}": "fixed", "cpu/op.gone@fp32": "stale"}

    def test_it_is_fixed_where_every_device_of_the_kind_works(self) -> None:
        broken = place(failing("op.gelu@fp32", Status.ERROR), device="cuda:1")
        assert gate.against(["cuda/op.gelu@fp32"], [place(device="cuda:0"), broken]) == ()
        (finding,) = gate.against(["cuda/op.gelu@fp32"], [place(device="cuda:0"), place(device="cuda:1")])
        assert finding.verdict == "fixed"

    def test_evidence_of_no_device_says_nothing(self) -> None:
        assert gate.against([f"cpu/{GELU}"], []) == ()

    def test_a_claim_is_no_evidence_that_it_was_fixed(self) -> None:
        facts = select([survey(cell(GELU, evidence="claimed"))], NOW.identity)
        (finding,) = gate.against([f"cpu/{GELU}"], [Place("cpu", NOW, facts)])
        assert finding.verdict == "stale"
