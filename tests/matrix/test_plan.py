"""The plan: what it gives torch, and how it explains itself."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from amp_matrix.plan import Gain, Plan, Proof, Rejection
from amp_matrix.precision import COMPUTES
from amp_matrix.survey import Real


def plan(precision: str, **changes: Any) -> Plan:
    given: dict[str, Any] = {"device": "cpu", "task": "train", "prefer": "speed", "reason": "it works"}
    return Plan(**{**given, "precision": precision, **changes})


@pytest.mark.parametrize("precision", COMPUTES)
def test_autocast_is_entered_for_mixed_precisions_alone(precision: str) -> None:
    linear, x = torch.nn.Linear(8, 8), torch.ones(2, 8)
    with plan(precision).autocast():
        assert torch.is_autocast_enabled("cpu") is precision.endswith("-mixed")
        got = linear(x).dtype
    wanted = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}
    assert got is wanted.get(precision, torch.float32)
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_gives_a_new_context_each_time() -> None:
    chosen = plan("bf16-mixed")
    with chosen.autocast(), chosen.autocast():
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_autocast_is_for_the_kind_of_the_device() -> None:
    context = plan("bf16-mixed", device="cuda:1").autocast()
    assert isinstance(context, torch.autocast)
    assert context.device == "cuda"


@pytest.mark.parametrize("precision", COMPUTES)
@pytest.mark.parametrize("task", ["train", "infer"])
def test_the_scaler_scales_only_to_train_in_fp16_mixed(precision: str, task: str) -> None:
    scaler = plan(precision, task=task).grad_scaler()
    assert scaler.is_enabled() is (precision == "fp16-mixed" and task == "train")


@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed", "bf16-mixed"])
def test_a_training_step_as_users_write_it(precision: str) -> None:
    chosen = plan(precision)
    model = torch.nn.Linear(4, 1).to(dtype=chosen.param_dtype)
    before = model.weight.detach().clone()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), chosen.grad_scaler()
    for _ in range(8):  # the scale of 65536 is too much at first, and a step that overflows is skipped
        with chosen.autocast():
            loss = (model(torch.ones(3, 4, dtype=chosen.param_dtype)).float() - 1.0).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert not torch.equal(before, model.weight)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("fp32", torch.float32),
        ("tf32", torch.float32),
        ("bf16-mixed", torch.float32),
        ("bf16-true", torch.bfloat16),
        ("fp16-true", torch.float16),
    ],
)
def test_parameters_are_low_for_true_precisions_alone(precision: str, dtype: torch.dtype) -> None:
    assert plan(precision).param_dtype is dtype


def test_explain_has_a_line_for_everything() -> None:
    chosen = plan(
        "bf16-mixed",
        gain=Gain(1.42, 1.614),
        rejected=(Rejection("fp16-mixed", "op.gelu@fp16-mixed", "crash", "op.gelu@fp16-mixed is crash"),),
        caveats=("op.softmax[large]@bf16-mixed: nonfinite: inf",),
        evidence=Proof("ab" * 32, "2026-01-31T08:00:00Z", 3 * 86400.0),
    )
    assert chosen.explain().splitlines() == [
        "cpu: bf16-mixed to train, preferring speed",
        "why: it works",
        "speed: 1.42x to 1.61x fp32",
        "evidence: survey abababababab, measured 2026-01-31T08:00:00Z, 3 days ago",
        "not fp16-mixed: op.gelu@fp16-mixed is crash",
        "caveat: op.softmax[large]@bf16-mixed: nonfinite: inf",
    ]


def test_explain_says_what_to_set_for_tf32() -> None:
    text = plan("tf32", device="cuda:0").explain()
    assert 'torch.set_float32_matmul_precision("high")' in text
    assert "evidence: none" in text


@pytest.mark.parametrize(
    ("age", "said"), [(5.0, "less than a minute ago"), (3600.0, "1 hour ago"), (7300.0, "2 hours ago"), (60.0, "1 min")]
)
def test_ages_are_said_in_their_largest_unit(age: float, said: str) -> None:
    assert said in plan("fp32", evidence=Proof("a", "2026-01-31T08:00:00Z", age)).explain()


def test_json_holds_everything_and_no_bare_nan() -> None:
    chosen = plan(
        "bf16-mixed",
        gain=Gain(1.5, 2.0),
        evidence=Proof("a", "s", math.nan),
        rejected=(Rejection("fp32", "", "ok", "r"),),
    )
    document = json.loads(chosen.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert document == chosen.to_dict()
    assert document["format"] == 1
    assert document["evidence"]["age"] == "nan"
    assert document["gain"] == {"low": 1.5, "high": 2.0}
    assert document["rejected"] == [{"precision": "fp32", "cell": "", "status": "ok", "reason": "r", "gain": None}]


def test_printed_it_is_two_lines() -> None:
    chosen = plan("bf16-mixed", rejected=(Rejection("fp32", "", "ok", "r"),), caveats=("x",) * 9)
    assert str(chosen).splitlines() == chosen.explain().splitlines()[:2]


def test_of_many_caveats_five_are_said_and_the_rest_are_to_be_shown() -> None:
    caveats = tuple(f"op.a{n}@fp32: {'error' if n else 'crash'}: seen: here" for n in range(8))
    lines = plan("bf16-mixed", caveats=caveats).explain().splitlines()
    assert [line for line in lines if line.startswith("caveat: ")] == [f"caveat: {c}" for c in caveats[:5]]
    assert lines[-1] == f"and 3 more: amp-probe show --device {plan('fp32').device} --status crash --status error"
    assert "more" not in plan("bf16-mixed", caveats=caveats[:5]).explain()


def test_a_wide_interval_is_said_with_about() -> None:
    assert str(Gain(0.54, 3.92)) == "about 0.5x to 3.9x fp32"
    assert str(Gain(1.2, 2.4)) == "1.20x to 2.40x fp32"


def test_numbers_as_documents_hold_them_become_json_too() -> None:
    chosen = plan("bf16-mixed", gain=Gain(Real(1.5), Real(2.0)), evidence=Proof("a", "s", Real("inf")))
    document = json.loads(chosen.to_json())
    assert (document["gain"], document["evidence"]["age"]) == ({"low": 1.5, "high": 2.0}, "inf")
