"""Surveys to render: ordinary ones, one with hostile text in every field, and a large one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amp_matrix.plan import Gain, Plan, Proof, Rejection
from amp_matrix.survey import (
    Cell,
    Environment,
    Outcome,
    Raised,
    Stage,
    Status,
    Survey,
    TensorError,
    conclude,
    not_run,
)

HOSTILE = (
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "\"'><svg onload=window.pwned=1>",
    "{{ 7 * 7 }}{% raise %}",
    "\x1b[31mred\x1b[0m\x1b]8;;https://evil.example\x07link\x1b]8;;\x07",
    "\u202egnp.exe\u2066\u200b\u2028\u2029",
    "[bold red]markup[/bold red][link=https://evil.example]x[/link]",
    "=cmd|' /C calc'!A0",
    "+1",
    "-1+1",
    "@SUM(A1)",
    "a | b || c",
    "`code` **bold** [x](javascript:alert(1)) ![i](http://evil.example/i.png)",
    "@everyone #1 https://evil.example www.evil.example",
    "line\nline\r\n\n# heading\n- item\n| a | b |",
    "\x00\x07\x08\x7f\x9b31m",
    "# heading",
    "&lt;b&gt;&#60;",
    "<!-- --> ]]> <![CDATA[",
    "x" * 5000,
    "漢字" * 300,
    "",
    " ",
)
"""Text that would be markup, script, a formula, a terminal command or a mention somewhere."""

Make = Callable[..., Survey]


def stage(name: str, status: Status = Status.OK, **more: object) -> Stage:
    """A stage with one judged tensor."""
    error = TensorError(name="out", dtype="bfloat16", n=0.41, n_limit=1.5, s=0.9, s_limit=2.0)
    values: dict[str, object] = {"seconds": 0.0021, "dtypes": {"out": "bfloat16"}, "errors": (error,), **more}
    return Stage(name=name, status=status, **values)  # type: ignore[arg-type]


def cell(probe: str, precision: str, *stages: Stage, **more: object) -> Cell:
    """A cell whose outcome its stages make."""
    outcome = conclude(stages or (stage("infer"), stage("forward"), stage("backward")), seconds=0.0063)
    values: dict[str, object] = {"tier": "essential", "revision": 1, "outcome": outcome, **more}
    return Cell(probe=probe, precision=precision, **values)  # type: ignore[arg-type]


def failing_cells() -> list[Cell]:
    """A cell of every status but ok, and a simulated and a claimed one."""
    far = TensorError(name="weight.grad", dtype="float16", n=19630.0, n_limit=1.5, s=float("nan"), s_limit=2.0)
    raised = Raised("RuntimeError", "\"softmax_kernel\" not implemented for 'Half'")
    return [
        cell("op.softmax", "fp16-mixed", stage("forward", Status.NONFINITE, reason="NaN in 3 of 64 outputs")),
        cell("op.linear", "fp16-mixed", stage("forward"), stage("backward", Status.INACCURATE, errors=(far,))),
        cell("op.conv2d", "fp16-mixed", stage("forward", Status.UNSUPPORTED, exception=raised, reason="refused")),
        cell("op.matmul", "fp16-mixed", stage("forward", Status.CRASH, reason="SIGSEGV"), variant="k1000"),
        cell("op.lstm", "fp16-mixed", stage("forward", Status.ERROR, exception=raised, reason="x"), tier="stress"),
        cell("scaler.lifecycle", "fp16-mixed", stage("step", Status.TIMEOUT, reason="over 10 s")),
        cell("autocast.applies", "bf16-mixed", stage("matmul", Status.INERT, reason="float32 out")),
        cell("speed.matmul", "fp16-mixed", stage("time", Status.EMULATED, numbers={"gain": 0.5}), tier="stress"),
        cell("op.rms_norm", "fp16-mixed", outcome=not_run("out of memory", "out_of_memory")),
        cell("op.gelu", "fp16-true", evidence="simulated", outcome=Outcome(status=None), tier="stress"),
        cell("op.silu", "fp16-true", evidence="claimed", tier="stress"),
    ]


def environment(**identity: str) -> Environment:
    """A CPU's environment, or what is given in its place."""
    own = {"device": "cpu", "torch": "2.13.0", "cpu_capability": "AVX512", "os": "Linux", **identity}
    return Environment(identity=own, scoped={"fp32_precision": "none"}, recorded={"model": "Intel Xeon"})


@pytest.fixture
def make() -> Make:
    """Builds a survey; keywords replace its fields."""

    def build(**fields: object) -> Survey:
        speed = cell("speed.train_step", "bf16-mixed", stage("time", numbers={"gain": 2.25, "gain_low": 2.1}))
        ordinary = [
            cell(probe, precision, variant=variant)
            for probe in ("op.softmax", "op.matmul", "train.mlp")
            for variant in ("base", "large", "row")
            for precision in ("fp32", "bf16-mixed", "bf16-true")
        ]
        refused = [
            cell(p, "tf32", stage("build", Status.UNSUPPORTED, reason="TF32 exists on cuda only"))
            for p in ("op.softmax", "op.matmul")
        ]
        values: dict[str, object] = {
            "tool": "0.1.0",
            "device": "cpu",
            "suite": "core",
            "started": "2026-12-01T00:00:00Z",
            "seconds": 3.2,
            "environment": environment(),
            "cells": (*ordinary, *refused, *failing_cells(), speed),
            **fields,
        }
        return Survey(**values)  # type: ignore[arg-type]

    return build


@pytest.fixture
def survey(make: Make) -> Survey:
    """A CPU's survey with every status in it."""
    return make()


@pytest.fixture
def several(make: Make) -> tuple[Survey, ...]:
    """Three devices, one of them in two environments."""
    cuda = environment(device="cuda", name="NVIDIA H200", cpu_capability="")
    mps = environment(device="mps", chip="Apple M2", macos="15.1", cpu_capability="")
    return (
        make(),
        make(environment=environment(torch="2.12.0"), started="2026-11-01T00:00:00Z"),
        make(device="cuda:0", environment=cuda),
        make(device="mps", environment=mps, cells=(cell("op.softmax", "bf16-mixed"),)),
    )


@pytest.fixture
def timed(make: Make) -> Survey:
    """Two speeds as a run measures them, one of them emulated, between cells that are ok."""

    def speed(probe: str, precision: str, status: Status, low: float, high: float) -> Cell:
        numbers = {"gain": (low * high) ** 0.5, "gain_low": low, "gain_high": high, "threads": 1.0}
        return cell(probe, precision, stage("time", status, numbers=numbers), tier="stress")

    speeds = (
        speed("speed.infer", "fp32", Status.OK, 1.0, 1.0),
        speed("speed.infer", "bf16-mixed", Status.OK, 1.5, 1.9),
        speed("speed.infer", "bf16-true", Status.EMULATED, 0.06, 0.7),
    )
    ordinary = tuple(cell("op.softmax", "bf16-mixed", variant=f"v{i}") for i in range(500))
    return make(cells=(*ordinary, *speeds))


@pytest.fixture
def simulated(make: Make) -> Survey:
    """Autocast's policy for a device that is not here: dtypes of many operators, and no status anywhere."""

    def policy(precision: str, low: str) -> Cell:
        kept = {f"exp{i}": "float32" for i in range(60)}
        stages = (
            Stage(name="enter", status=None, dtypes={"autocast": low}),
            Stage(name="float32", status=None, dtypes={"linear": low, "matmul": low, **kept}),
        )
        outcome = Outcome(status=None, stages=stages)
        return cell("autocast.policy", precision, evidence="simulated", outcome=outcome, tier="stress")

    here = Environment(identity={"device": "mps", "torch": "2.13.0", "simulated": "yes"}, recorded={"simulated": "x"})
    cells = (policy("bf16-mixed", "bfloat16"), policy("fp16-mixed", "float16"))
    return make(device="mps", environment=here, cells=cells)


@pytest.fixture
def large(make: Make) -> Survey:
    """10,000 cells, one in forty of them failing."""
    cells = [
        cell(
            f"{family}.probe{i}",
            precision,
            stage("forward", Status.NONFINITE if (i + v) % 40 == 0 else Status.OK, reason="NaN" * ((i + v) % 40 == 0)),
            stage("backward"),
            variant=f"v{v}",
        )
        for family in ("op", "opinfo", "train", "optim")
        for i in range(100)
        for v in range(5)
        for precision in ("fp32", "bf16-mixed", "fp16-mixed", "bf16-true", "fp16-true")
    ]
    return make(cells=tuple(cells))


@pytest.fixture
def plans() -> tuple[Plan, ...]:
    """A choice on evidence and a fallback."""
    blocked = Rejection("fp16-mixed", "op.softmax@fp16-mixed", "nonfinite", "NaN in 3 of 64 outputs")
    return (
        Plan(
            device="cpu",
            task="train",
            prefer="speed",
            precision="bf16-mixed",
            reason="every essential cell is ok, and a training step is faster",
            gain=Gain(2.1, 2.4),
            rejected=(blocked,),
            caveats=("op.lstm@fp16-mixed: error",),
            evidence=Proof("0" * 64, "2026-12-01T00:00:00Z", 60.0),
        ),
        Plan(device="mps", task="infer", prefer="memory", precision="fp32", reason="nothing is known about mps"),
    )


@pytest.fixture(params=HOSTILE, ids=range(len(HOSTILE)))
def hostile(request: pytest.FixtureRequest) -> str:
    """One hostile string."""
    return str(request.param)


@pytest.fixture
def poisoned(hostile: str) -> tuple[Survey, Plan]:
    """A survey and a plan with the hostile string in every text field there is."""
    bad = hostile
    far = TensorError(name=bad, dtype=bad, n=9.0, n_limit=1.5, s=float("inf"), s_limit=2.0)
    stages = (
        Stage(
            name=bad,
            status=Status.INACCURATE,
            reason=bad,
            code=bad,
            exception=Raised(bad, bad),
            dtypes={bad: bad},
            errors=(far,),
            numbers={bad: float("nan"), "gain": 2.0},
            curves={bad: (1.0, float("inf"))},
        ),
    )
    outcome = Outcome(
        status=Status.INACCURATE, reason=bad, code=bad, stage=bad, stages=stages, notes=(bad,), seconds=0.1
    )
    poisoned_cell = Cell(probe=bad, variant=bad, precision=bad, tier="stress", revision=1, outcome=outcome)
    refused = cell("op.softmax", bad + "+", Stage(name=bad, status=Status.UNSUPPORTED, reason=bad))
    survey = Survey(
        tool=bad,
        device=bad,
        suite=bad,
        started=bad,
        seconds=1.0,
        environment=Environment(
            identity={"device": bad, "torch": bad, "name": bad, bad: bad}, scoped={bad: bad}, recorded={bad: bad}
        ),
        cells=(poisoned_cell, refused),
    )
    plan = Plan(
        device=bad,
        task="train",
        prefer="speed",
        precision=bad,
        fp8=bad,
        reason=bad,
        gain=Gain(float("nan"), float("inf")),
        rejected=(Rejection(bad, bad, bad, bad),),
        caveats=(bad,),
        evidence=Proof(bad, bad, 1.0),
    )
    return survey, plan
