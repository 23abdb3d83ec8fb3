"""The policy on made-up evidence, and `choose` on real stores, processes and threads."""

from __future__ import annotations

import math
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
from evidence import GAINS, NOW, STARTED, cell, elsewhere, failing, known, survey, timed, working

import amp_matrix
from amp_matrix import ChoiceError, EvidenceWarning
from amp_matrix.choose import choose
from amp_matrix.decide import decide
from amp_matrix.environment import capture, identity_key
from amp_matrix.matrix import select
from amp_matrix.plan import Gain, Plan, Rejection
from amp_matrix.precision import COMPUTES
from amp_matrix.store import Store
from amp_matrix.survey import Environment, Stage, Status, Survey


def decided(*changes: Any, now: Environment = NOW, **asked: Any) -> Plan:
    return decide(known(*changes), now, device="cpu", **asked)


def rejection(plan: Plan, precision: str) -> Rejection:
    return next(r for r in plan.rejected if r.precision == precision)


class TestSpeed:
    def test_the_fastest_wins(self) -> None:
        plan = decided()
        assert (plan.precision, plan.gain) == ("bf16-true", Gain(2.0, 2.2))
        assert "every essential cell to train is ok here" in plan.reason

    def test_a_failing_cell_rejects(self) -> None:
        plan = decided(failing("optim.tiny_update@bf16-true", Status.INACCURATE, "the update vanished"))
        assert plan.precision == "bf16-mixed"
        assert rejection(plan, "bf16-true") == Rejection(
            "bf16-true",
            "optim.tiny_update@bf16-true",
            "inaccurate",
            "optim.tiny_update@bf16-true is inaccurate in forward: the update vanished",
        )

    def test_of_those_as_fast_within_the_noise_the_safest_wins(self) -> None:
        plan = decided(timed("speed.train_step@bf16-mixed", 1.2, 2.0), timed("speed.train_step@fp16-mixed", 1.2, 3.0))
        assert plan.precision == "bf16-mixed"
        assert rejection(plan, "bf16-true").reason == (
            "eligible, 2.00x to 2.20x fp32; bf16-mixed is as fast within the noise, and safer"
        )

    def test_an_interval_that_ends_below_the_best_loses(self) -> None:
        plan = decided(timed("speed.train_step@bf16-mixed", 1.2, 1.99))
        assert plan.precision == "bf16-true"
        assert rejection(plan, "bf16-mixed") == Rejection(
            "bf16-mixed", "", "ok", "eligible, 1.20x to 1.99x fp32; bf16-true was faster", Gain(1.2, 1.99)
        )
        assert rejection(plan, "fp32").reason == "eligible; bf16-true was faster"

    def test_each_task_asks_its_own_timing(self) -> None:
        slow = timed("speed.infer@bf16-true", 0.5, 0.6)
        assert decided(slow).precision == "bf16-true"
        assert decided(slow, task="infer").precision == "bf16-mixed"

    @pytest.mark.parametrize(
        ("low", "high"),
        [
            (1.1, 1.4),
            (0.9, 5.0),
            (math.nan, math.nan),
            (math.nan, 2.0),
            (2.0, math.nan),
            (math.inf, math.inf),
            (2.0, math.inf),
            (2.0, 1.5),
            (-2.0, 2.0),
        ],
    )
    def test_what_is_no_gain_is_no_gain(self, low: float, high: float) -> None:
        plan = decided(*(timed(f"speed.train_step@{p}", low, high) for p in GAINS))
        assert plan.precision == "fp32"
        assert plan.evidence is not None
        assert rejection(plan, "bf16-mixed").status == "ok"

    def test_noise_is_said_to_be_noise_and_not_to_be_no_gain(self) -> None:
        plan = decided(*(timed(f"speed.train_step@{p}", 0.54, 3.92) for p in GAINS))
        assert plan.precision == "fp32"
        assert rejection(plan, "bf16-mixed").reason == (
            "eligible, about 0.5x to 3.9x fp32, which is too noisy to tell;"
            " run amp-probe run --suite quick on a quieter machine"
        )
        assert plan.reason.endswith(
            "measurably faster; too noisy to tell: tf32, bf16-mixed, fp16-mixed, bf16-true, fp16-true"
        )
        slow = decided(*(timed(f"speed.train_step@{p}", 0.9, 1.1) for p in GAINS))
        assert rejection(slow, "bf16-mixed").reason == "eligible, 0.90x to 1.10x fp32; that is no gain"
        assert "noisy" not in slow.reason

    def test_a_timing_without_numbers_is_no_gain(self) -> None:
        plan = decided(*(cell(f"speed.train_step@{p}", Stage("time")) for p in GAINS))
        assert plan.precision == "fp32"

    def test_an_emulated_timing_is_no_gain(self) -> None:
        emulated = failing("speed.train_step@bf16-true", Status.EMULATED, "0.4x to 0.5x fp32")
        plan = decided(emulated)
        assert plan.precision == "bf16-mixed"
        assert rejection(plan, "bf16-true").reason == (
            "eligible, but speed.train_step@bf16-true is emulated in forward: 0.4x to 0.5x fp32"
        )

    def test_an_untimed_precision_is_rejected_with_what_to_run(self) -> None:
        plan = decide(known(without=("speed.train_step@bf16-true",)), NOW, device="cpu")
        assert plan.precision == "bf16-mixed"
        assert rejection(plan, "bf16-true") == Rejection(
            "bf16-true",
            "speed.train_step@bf16-true",
            "unknown",
            "eligible, but speed.train_step@bf16-true was never measured here; run amp-probe run --device cpu",
        )


class TestMemory:
    def test_low_parameters_come_first_and_need_no_gain(self) -> None:
        plan = decide(known(gains={}), NOW, device="cpu", prefer="memory")
        assert plan.precision == "bf16-true"
        assert plan.gain is None
        assert [r.precision for r in plan.rejected] == [p for p in COMPUTES if p != "bf16-true"]
        assert rejection(plan, "fp16-true").reason == "eligible; bf16-true needs no more memory and is safer"
        assert rejection(plan, "bf16-mixed").reason == "eligible; bf16-true needs less memory"

    def test_the_order(self) -> None:
        order, changes = [], []
        for _ in COMPUTES:
            order.append(decided(*changes, prefer="memory").precision)
            changes.append(failing(f"op.gelu@{order[-1]}", Status.ERROR))
        assert order == ["bf16-true", "fp16-true", "bf16-mixed", "fp16-mixed", "fp32", "tf32"]


class TestFallback:
    def test_nothing_known(self) -> None:
        plan = decide({}, NOW, device="cpu")
        assert (plan.precision, plan.evidence, plan.gain, plan.caveats) == ("fp32", None, None, ())
        assert plan.reason.endswith("copy.roundtrip@fp32 was never measured here; run amp-probe run --device cpu")
        assert {r.status for r in plan.rejected} == {"unknown"}
        assert len(plan.rejected) == len(COMPUTES) - 1

    def test_nothing_eligible(self) -> None:
        plan = decided(*(failing(f"op.gelu@{p}", Status.CRASH, "SIGILL") for p in COMPUTES))
        assert (plan.precision, plan.evidence) == ("fp32", None)
        assert plan.caveats == ("fp32 itself fails here: op.gelu@fp32 is crash in forward: SIGILL",)

    def test_a_failing_fp32_does_not_hold_back_what_works(self) -> None:
        plan = decided(failing("op.gelu@fp32", Status.INACCURATE))
        assert (plan.precision, plan.caveats) == ("bf16-true", ())
        assert rejection(plan, "fp32").cell == "op.gelu@fp32"

    def test_fp32_by_evidence_has_its_survey(self) -> None:
        plan = decided(*(failing(f"op.gelu@{p}", Status.ERROR) for p in COMPUTES if p != "fp32"))
        assert plan.precision == "fp32"
        assert plan.evidence is not None
        assert "no other precision is eligible and measurably faster" in plan.reason


class TestEvidence:
    def test_the_oldest_survey_that_counts_is_named_with_its_age(self) -> None:
        facts = [*working().values()]
        older = survey(*(c for c in facts if c.id == "op.gelu@bf16-true"), started="2026-01-01T00:00:00Z")
        newer = survey(*(c for c in facts if c.id != "op.gelu@bf16-true"))
        at = datetime(2026, 1, 1, 1, tzinfo=timezone.utc).timestamp()
        plan = decide(select([newer, older], NOW.identity), NOW, device="cpu", at=at)
        assert plan.evidence is not None
        assert (plan.evidence.started, plan.evidence.age) == ("2026-01-01T00:00:00Z", 3600.0)

    def test_without_a_clock_the_age_is_unknown(self) -> None:
        evidence = decided().evidence
        assert evidence is not None
        assert math.isnan(evidence.age)

    def test_other_flags_reject(self) -> None:
        now = msgspec.structs.replace(NOW, scoped=NOW.scoped | {"allow_fp16_accumulation": "yes"})
        plan = decided(now=now, prefer="memory")
        assert "under other settings" in rejection(plan, "fp16-true").reason
        assert plan.precision == "bf16-true"


class TestCaveats:
    def test_failing_stress_cells_of_the_chosen_precision(self) -> None:
        plan = decided(
            failing("op.softmax[large]@bf16-true", Status.NONFINITE, "inf\nwhere finite"),
            failing("op.softmax[large]@bf16-mixed", Status.NONFINITE),
            failing("op.gelu[large]@bf16-true", Status.NOT_RUN),
            cell("op.silu[large]@bf16-true"),
            cell("op.mse[large]@bf16-true", Stage("forward", Status.ERROR), evidence="claimed"),
        )
        assert plan.caveats == ("op.softmax[large]@bf16-true: nonfinite: inf where finite",)

    def test_what_fails_backward_is_none_to_infer(self) -> None:
        stress = cell("op.softmax[large]@bf16-true", Stage("infer"), Stage("backward", Status.ERROR))
        essential = failing("train.mlp@bf16-true", Status.ERROR)
        plan = decided(stress, essential, task="infer")
        assert (plan.precision, plan.caveats) == ("bf16-true", ())

    def test_a_need_rejects_instead(self) -> None:
        broken = failing("op.lstm@bf16-true", Status.CRASH)
        others = [cell(f"op.lstm@{p}") for p in COMPUTES if p != "bf16-true"]
        assert decided(broken, *others).caveats == ("op.lstm@bf16-true: crash: seen",)
        plan = decided(broken, *others, needs=("op.lstm",))
        assert plan.precision == "bf16-mixed"
        assert rejection(plan, "bf16-true").cell == "op.lstm@bf16-true"


class TestFp8:
    FP8 = "bf16-mixed+te-mxfp8"

    def test_is_ignored_unless_allowed(self) -> None:
        plan = decided(cell(f"op.linear@{self.FP8}"), timed(f"speed.train_step@{self.FP8}", 9.0, 9.1))
        assert (plan.precision, plan.fp8) == ("bf16-true", "none")
        assert self.FP8 not in {r.precision for r in plan.rejected}

    def test_is_rejected_where_no_essential_cells_are_defined(self) -> None:
        plan = decided(timed(f"speed.train_step@{self.FP8}", 9.0, 9.1), allow_fp8=True)
        assert plan.fp8 == "none"
        assert rejection(plan, self.FP8).reason == f"no essential cells are defined for {self.FP8}"


# What follows reads real stores.


def here(*changes: Any, started: str = STARTED, **options: Any) -> Survey:
    """A survey of this CPU's environment in which everything works but for the changes."""
    cells = working() | {c.id: c for c in changes}
    return survey(*cells.values(), environment=capture("cpu"), started=started, **options)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture(autouse=True)
def _fresh_warnings() -> Iterator[None]:
    """Each test is a process that has warned of nothing yet."""

    module = sys.modules["amp_matrix.choose"]  # the attribute of the package is the function
    module._warned.clear()  # type: ignore[attr-defined]
    module._probed.clear()  # type: ignore[attr-defined]
    yield
    module._warned.clear()  # type: ignore[attr-defined]


def test_the_package_gives_the_function() -> None:
    assert amp_matrix.choose is choose


def test_evidence_in_the_store_is_chosen_by(store: Store) -> None:
    name = store.add(here())
    plan = choose("cpu", store=store)
    assert (plan.device, plan.precision) == ("cpu", "bf16-true")
    assert plan.evidence is not None
    assert plan.evidence.survey == name
    assert plan.to_dict()["gain"] == {"low": 2.0, "high": 2.2}
    assert plan.evidence.age == pytest.approx(
        time.time() - datetime(2026, 1, 31, 8, tzinfo=timezone.utc).timestamp(), abs=60
    )


@pytest.mark.parametrize("kind", [str, Path])
def test_a_store_may_be_a_path(store: Store, kind: type) -> None:
    store.add(here())
    assert choose("cpu", store=kind(store.root)).precision == "bf16-true"


def test_the_default_store_is_the_one_that_the_environment_names(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(here())
    monkeypatch.setenv("AMP_PROBE_STORE", str(store.root))
    assert choose("cpu").precision == "bf16-true"


def test_an_empty_store_warns_once_and_gives_fp32(store: Store) -> None:
    with pytest.warns(
        EvidenceWarning, match=r"cpu: .* was never measured here; run amp-probe run --device cpu"
    ) as seen:
        plan = choose("cpu", store=store)
    assert (plan.precision, plan.evidence) == ("fp32", None)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose("cpu", store=store) == plan


def test_an_empty_store_raises_where_asked(store: Store) -> None:
    with pytest.raises(ChoiceError, match="never measured"):
        choose("cpu", store=store, on_missing="raise")


def test_evidence_of_another_environment_does_not_count_but_explains(store: Store) -> None:
    then = msgspec.structs.replace(capture("cpu"), identity=capture("cpu").identity | {"torch": "2.4.0"})
    store.add(survey(*working().values(), environment=then))
    with pytest.warns(EvidenceWarning, match="torch 2.4.0 then"):
        assert choose("cpu", store=store).precision == "fp32"


def test_a_survey_that_was_put_into_the_wrong_folder_does_not_count(store: Store) -> None:
    then = elsewhere(torch="2.4.0")
    name = store.add(survey(*working().values(), environment=then))
    wrong = store.root / "surveys" / identity_key(capture("cpu"))
    wrong.mkdir()
    (store.root / "surveys" / identity_key(then) / f"{name}.json").rename(wrong / f"{name}.json")
    with pytest.warns(EvidenceWarning):
        assert choose("cpu", store=store).precision == "fp32"


def damage(store: Store, when: str) -> Path:
    """A damaged survey of this environment that was last written at a time."""
    path = store.root / "surveys" / identity_key(capture("cpu")) / f"{'0' * 64}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b'{"format": 1, "kind": "survey", ')
    seconds = datetime.strptime(when, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    os.utime(path, (seconds, seconds))
    return path


def test_a_damaged_survey_may_be_the_newest_so_nothing_older_counts(store: Store) -> None:
    store.add(here())
    path = damage(store, "2026-02-01T00:00:00Z")
    with pytest.warns(EvidenceWarning, match="is damaged"):
        plan = choose("cpu", store=store)
    assert (plan.precision, plan.evidence) == ("fp32", None)
    assert path.name in plan.reason
    assert str(store.root) not in plan.reason
    with pytest.raises(ChoiceError, match="is damaged"):
        choose("cpu", store=store, on_missing="raise")


def test_evidence_that_is_newer_than_the_damage_counts(store: Store) -> None:
    store.add(here())
    damage(store, "2026-01-30T00:00:00Z")
    with pytest.warns(EvidenceWarning, match="is damaged"):
        assert choose("cpu", store=store, on_missing="raise").precision == "bf16-true"


def test_damage_in_another_environment_is_not_looked_at(store: Store) -> None:
    store.add(here())
    other = store.root / "surveys" / ("f" * 16)
    other.mkdir()
    (other / f"{'0' * 64}.json").write_bytes(b"junk")
    assert choose("cpu", store=store).precision == "bf16-true"


def test_a_store_that_is_a_file_gives_fp32(tmp_path: Path) -> None:
    (tmp_path / "surveys").write_text("not a folder")
    with pytest.warns(EvidenceWarning):
        plan = choose("cpu", store=tmp_path)
    assert (plan.precision, plan.evidence) == ("fp32", None)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"task": "trian"}, "task='trian': did you mean 'train'?"),
        ({"prefer": "sped"}, "prefer='sped': did you mean 'speed'?"),
        ({"on_missing": "prob"}, "on_missing='prob': did you mean 'probe'?"),
        ({"needs": ["lstm"]}, "needs='lstm': write op.conv2d"),
        ({"device": "cdua:0"}, "unknown device 'cdua:0'; did you mean 'cuda'?"),
        ({"device": "GPU"}, "unknown device 'gpu'; did you mean 'cuda'?"),
        ({"task": "Infer"}, "choose was called with what means nothing: task='Infer'"),
        ({"device": "cuda:99"}, ""),
    ],
)
def test_what_cannot_be_asked_gives_fp32_with_the_reason(store: Store, asked: dict[str, Any], reason: str) -> None:
    with pytest.warns(EvidenceWarning):
        plan = choose(**{"device": "cpu", "store": store, **asked})
    assert (plan.precision, plan.evidence) == ("fp32", None)
    assert reason in plan.reason
    if "on_missing" not in asked:
        with pytest.raises(ChoiceError):
            choose(**{"device": "cpu", "store": store, **asked, "on_missing": "raise"})


def test_one_need_may_be_a_plain_string(store: Store) -> None:
    store.add(here(*(cell(f"op.lstm@{p}") for p in ("fp32", "bf16-mixed"))))
    assert choose("cpu", store=store, needs="op.lstm").precision == "bf16-mixed"


@pytest.mark.parametrize("device", ["CPU", "Cpu:0"])
def test_a_device_may_be_in_capitals(store: Store, device: str) -> None:
    store.add(here())
    assert choose(device, store=store).device == "cpu"


def test_a_need_that_was_never_measured_is_what_is_missing(store: Store) -> None:
    store.add(here())
    with pytest.warns(EvidenceWarning):
        plan = choose("cpu", store=store, needs=["op.conv2d"])
    assert plan.reason == "op.conv2d was never measured here; run amp-probe run --suite core --device cpu"


def test_a_need_that_no_survey_knows_is_met_with_the_nearest_that_one_does(store: Store) -> None:
    store.add(here(cell("op.conv2d@fp32")))
    store.add(survey(cell("op.gru[large]@fp32"), environment=elsewhere(torch="2.4.0")))
    for need, meant in (("op.mattmul", "op.matmul"), ("op.conv2", "op.conv2d"), ("op.gru[larg]", "op.gru[large]")):
        with pytest.warns(EvidenceWarning):
            plan = choose("cpu", store=store, needs=[need])
        assert f"no survey here knows a probe of this name (did you mean '{meant}'?)" in plan.reason


def test_what_only_this_process_set_is_named_and_no_child_is_asked(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    store.add(here())
    fake_prober(tmp_path, monkeypatch, f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    torch.set_flush_denormal(True)
    try:
        with pytest.warns(EvidenceWarning):
            plan = choose("cpu", store=store, on_missing="probe")
    finally:
        torch.set_flush_denormal(False)
    assert "flushing of denormals no then, yes now" in plan.reason
    assert "amp-probe run cannot measure it under torch.set_flush_denormal(True)" in plan.reason
    assert "undo it" in plan.reason
    assert not (tmp_path / "ran").exists()


def test_a_device_may_be_torchs_own(store: Store) -> None:
    import torch

    store.add(here())
    assert choose(torch.device("cpu", 0), store=store).device == "cpu"


def test_flags_that_were_changed_since_reject_what_they_can_change(store: Store) -> None:
    import torch

    store.add(here())
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        plan = choose("cpu", store=store)
    finally:
        torch.set_float32_matmul_precision(before)
    assert plan.precision == "bf16-true"
    assert "float32_matmul_precision highest then, medium now" in rejection(plan, "fp32").reason


def test_partial_evidence_is_missing_evidence(store: Store) -> None:
    store.add(survey(*(c for c in working().values() if c.precision == "fp32"), environment=capture("cpu")))
    with pytest.warns(EvidenceWarning, match="was never measured here"):
        plan = choose("cpu", store=store)
    assert plan.precision == "fp32"
    assert plan.evidence is not None


def test_fp32_by_evidence_does_not_warn(store: Store) -> None:
    store.add(here(*(failing(f"op.gelu@{p}", Status.ERROR) for p in COMPUTES if p != "fp32")))
    assert choose("cpu", store=store, on_missing="raise").precision == "fp32"


def fake_prober(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """A child that stands where the prober would: what `choose` starts, waits for and reads is real."""
    folder = tmp_path / "fake" / "amp_probe"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "__main__.py").write_text(textwrap.dedent(body))
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))


def test_probing_measures_in_a_child_and_reads_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ready = Store(tmp_path / "ready")
    ready.add(here())
    fake_prober(
        tmp_path,
        monkeypatch,
        f"""
        import os, shutil, sys
        assert sys.argv[1:] == ["run", "--suite", "quick", "--device", "cpu"], sys.argv
        print("noise")
        shutil.copytree({str(ready.root / "surveys")!r}, os.environ["AMP_PROBE_STORE"] + "/surveys")
        """,
    )
    assert choose("cpu", store=store, on_missing="probe").precision == "bf16-true"
    assert capfd.readouterr() == ("", "")
    (tmp_path / "fake" / "amp_probe" / "__main__.py").write_text("raise SystemExit('probed twice')")
    assert choose("cpu", store=store, on_missing="probe").precision == "bf16-true"


def test_a_prober_that_fails_gives_fp32_with_its_last_words(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_prober(tmp_path, monkeypatch, "import sys\nprint('x', file=sys.stderr)\nsys.exit('the disk is full')\n")
    with pytest.warns(EvidenceWarning, match="probing ended with exit code 1: the disk is full"):
        plan = choose("cpu", store=store, on_missing="probe")
    assert "probing ended with exit code 1: the disk is full" in plan.reason


def test_a_prober_that_failed_is_not_asked_again(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"""
        import sys
        open({str(tmp_path / "runs")!r}, "a").write("x")
        print("error: cpu: not stored: Permission denied\\nerror: the last of two\\nmore", file=sys.stderr)
        sys.exit(2)
        """
    fake_prober(tmp_path, monkeypatch, body)
    with pytest.warns(EvidenceWarning, match="probing ended with exit code 2: the last of two; "):
        plan = choose("cpu", store=store, on_missing="probe")
    assert choose("cpu", store=store, on_missing="probe") == plan
    assert (tmp_path / "runs").read_text() == "x"


def test_a_prober_that_hangs_is_given_up(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_prober(tmp_path, monkeypatch, "import time\ntime.sleep(60)\n")
    monkeypatch.setattr(sys.modules["amp_matrix.choose"], "PROBE_SECONDS", 0.5)
    with pytest.warns(EvidenceWarning, match="probing did not end within"):
        assert choose("cpu", store=store, on_missing="probe").precision == "fp32"


def test_threads_may_choose_at_once(store: Store) -> None:
    store.add(here())
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(choose("cpu", store=store).precision)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["bf16-true"] * 8


def chosen_in_a_worker(root: str) -> str:
    return choose("cpu", store=root).precision


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_workers_may_choose(store: Store) -> None:
    store.add(here())
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(chosen_in_a_worker, [str(store.root)] * 4) == ["bf16-true"] * 4


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "'torch', 'numpy', 'rich', 'typer', 'jinja2', 'filelock', 'platformdirs', 'packaging'"
    script = f"import amp_matrix, sys; print([m for m in ({heavy}) if m in sys.modules], callable(amp_matrix.choose))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[] True\n"


def test_importing_the_module_first_leaves_the_function_callable() -> None:
    script = "import amp_matrix.choose; from amp_matrix.choose import decide; print(callable(amp_matrix.choose))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize("needs", [None, 5])
def test_needs_that_are_none_of_the_kind_lead_to_fp32(needs: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = choose("cpu", needs=needs)  # type: ignore[arg-type]
    assert plan.precision == "fp32"
    assert "TypeError" in plan.reason
