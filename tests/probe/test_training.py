"""Training judged against float64: sound ones pass, and every fault put in on purpose is seen where it belongs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amp_matrix.survey import Outcome, Stage
from amp_probe.case import Script, Training
from amp_probe.draw import Draw
from amp_probe.harness.recorder import Draft
from amp_probe.harness.script import Lab
from amp_probe.harness.training import anchors, judge_movement
from amp_probe.harness.update import judge_update, judged_step, spacing
from amp_probe.probes.models import MLP, Transformer, numbers, sentences

Run = Callable[..., Outcome]
LOW = ("bf16-mixed", "fp16-mixed")


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.003)


def on_device(parameters: list[nn.Parameter]) -> bool:
    """Whether these are the measured parameters, not those of the float64 reference."""
    return parameters[0].dtype is not torch.float64


def training(name: str, optimizer: Any = sgd, model: Any = MLP, steps: int = 40) -> tuple[Training, Draw]:
    draw = Draw(f"test.training.{name}")
    return Training(model, numbers(draw), F.mse_loss, optimizer, steps), draw


def stage(outcome: Outcome, name: str) -> Stage:
    return next(s for s in outcome.stages if s.name == name)


class DropBias(torch.autograd.Function):
    """linear whose backward leaves part of the bias gradient out, as a wrapper's own backward may."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, part: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.part = part
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grads[0].to(weight.dtype)
        return grad @ weight, grad.T @ x, grad.sum(0) * ctx.part, None


class Wrapped(nn.Module):
    """A linear layer behind DropBias."""

    def __init__(self, inner: nn.Linear, part: float) -> None:
        super().__init__()
        self.weight, self.bias, self.part = inner.weight, inner.bias, part

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = DropBias.apply(x, self.weight, self.bias, self.part)
        return output


class Converted(MLP):
    """Its first layer is swapped for a wrapper when the model goes to the device, as conversions for FP8 do."""

    part = 0.5

    def to(self, *args: Any, **kwargs: Any) -> Any:
        moved = super().to(*args, **kwargs)
        moved[0] = Wrapped(moved[0], self.part)
        return moved


class Frozen(MLP):
    """Its last weight is frozen when the model goes to the device."""

    def to(self, *args: Any, **kwargs: Any) -> Any:
        moved = super().to(*args, **kwargs)
        moved[-1].weight.requires_grad_(False)
        return moved


class Hooked(MLP):
    """The gradient of one bias arrives a tenth too large."""

    def to(self, *args: Any, **kwargs: Any) -> Any:
        moved = super().to(*args, **kwargs)
        moved[2].bias.register_hook(lambda g: g * 1.1)
        return moved


class Skipping(torch.optim.SGD):
    """Leaves its first tensor out on the device."""

    def step(self, closure: Any = None) -> Any:
        group = self.param_groups[0]["params"]
        kept = group[0].detach().clone()
        super().step(closure)
        if on_device(group):
            group[0].data.copy_(kept)


def sleeping(kind: type[torch.optim.Optimizer], **settings: float) -> Any:
    """An optimizer that steps on the device at anchors only, so that no single judged step is wrong."""

    class Sleeping(kind):  # type: ignore[misc, valid-type]
        count = 0

        def step(self, closure: Any = None) -> Any:
            if not on_device(self.param_groups[0]["params"]) or self.count in (0, 5, 20, 39):
                super().step(closure)
            self.count += 1

    return lambda parameters: Sleeping(parameters, **settings)


@pytest.mark.parametrize("precision", ["fp32", *LOW])
@pytest.mark.parametrize("optimizer", [sgd, adamw])
def test_a_sound_training_passes(run_case: Run, precision: str, optimizer: Any) -> None:
    case, draw = training(f"sound.{optimizer.__name__}", optimizer)
    outcome = run_case(case, draw, precision)
    assert (outcome.status, outcome.reason) == ("ok", "")
    assert [s.name for s in outcome.stages] == ["build", "step0", "step5", "step20", "last", "movement"]


def test_the_curves_are_kept_and_fall(run_case: Run) -> None:
    outcome = run_case(*training("curves"), "bf16-mixed")
    curves = stage(outcome, "movement").curves
    assert {name: len(curve) for name, curve in curves.items()} == {"loss": 40, "reference": 40}
    assert curves["loss"][-1] < 0.7 * curves["loss"][0]
    assert curves["loss"] == pytest.approx(curves["reference"], rel=0.02)


def test_every_gradient_is_kept_and_of_updates_and_state_the_worst(run_case: Run) -> None:
    found = stage(run_case(*training("judged", adamw), "bf16-mixed"), "step5")
    names = [e.name for e in found.errors]
    assert names[:-1] == [f"grad {layer}.{kind}" for layer in (0, 2, 4) for kind in ("weight", "bias")]
    assert not names[-1].startswith("grad")
    assert set(found.dtypes) == set(names)


@pytest.mark.parametrize(("steps", "expected"), [(1, (0,)), (6, (0, 5)), (20, (0, 5, 19)), (40, (0, 5, 20, 39))])
def test_anchors(steps: int, expected: tuple[int, ...]) -> None:
    assert anchors(steps) == expected


@pytest.mark.parametrize("precision", ["fp32", *LOW])
@pytest.mark.parametrize("part", [0.0, 0.5, 0.9])
def test_a_wrapper_that_weakens_a_bias_gradient_is_seen_at_step_0(run_case: Run, precision: str, part: float) -> None:
    class Weak(Converted):
        pass

    Weak.part = part
    outcome = run_case(*training(f"bias.{part}", adamw, Weak), precision)
    assert (outcome.status, outcome.stage) == ("inaccurate", "step0")
    assert "0.bias" in outcome.reason


@pytest.mark.parametrize("precision", ["fp32", *LOW])
def test_a_kernel_that_halves_bias_gradients_is_seen(run_case: Run, precision: str) -> None:
    kernels = {"aten::sum": lambda x, *args, **kwargs: torch.sum(x, *args, **kwargs) * 0.5}
    outcome = run_case(*training("kernel"), precision, kernels)
    assert (outcome.status, outcome.stage) == ("inaccurate", "step0")
    assert "bias" in outcome.reason


@pytest.mark.parametrize("precision", LOW)
def test_a_gradient_ten_percent_too_large_is_seen(run_case: Run, precision: str) -> None:
    outcome = run_case(*training("hooked", sgd, Hooked), precision)
    assert (outcome.status, outcome.stage) == ("inaccurate", "step0")
    assert "2.bias" in outcome.reason


def test_a_loss_that_stays_is_inert(run_case: Run) -> None:
    """AdamW: what moves is not compared, so that the loss alone can show it."""

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-12 if on_device(parameters) else 0.003)

    movement = stage(run_case(*training("still", make), "bf16-mixed"), "movement")
    assert movement.status == "inaccurate"
    assert movement.numbers["fall"] == pytest.approx(0.0, abs=1e-3)


def test_a_stale_loop_that_is_too_slow_to_be_wrong_elsewhere_is_inert(run_case: Run) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        outcome = run_case(*training("stale.slow", lambda p: torch.optim.SGD(p, lr=1e-4)), "bf16-mixed")
    assert (outcome.status, outcome.stage) == ("inert", "movement")
    assert outcome.reason.startswith("the loss stayed at")


@pytest.mark.parametrize(
    ("moved", "status"),
    [
        (lambda right: right, "ok"),
        (lambda right: right * 0.79, "inaccurate"),
        (lambda right: right * 1.26, "inaccurate"),
        (lambda right: right + 0.5 * right.roll(1), "inaccurate"),
        (lambda right: -right, "inaccurate"),
        (lambda right: right * 0.0, "inert"),
        (lambda right: right * float("nan"), "inaccurate"),
    ],
)
def test_movement_is_judged_by_length_and_by_direction(moved: Callable[[Tensor], Tensor], status: str) -> None:
    draft, right = Draft("movement"), Draw("test.movement").normal(64)
    judge_movement(draft, "x", moved(right), right, by_movement=True)
    assert draft.status == status


def test_a_frozen_parameter_is_seen(run_case: Run) -> None:
    outcome = run_case(*training("frozen", adamw, Frozen), "bf16-mixed")
    assert (outcome.status, outcome.stage, outcome.code) == ("inaccurate", "step0", "no_gradient")
    assert stage(outcome, "movement").status == "inert"


@pytest.mark.parametrize("precision", ["fp32", *LOW])
def test_an_optimizer_that_skips_a_tensor_is_seen(run_case: Run, precision: str) -> None:
    outcome = run_case(*training("skipping", lambda p: Skipping(p, lr=0.1, momentum=0.9)), precision)
    assert stage(outcome, "step0").code == "unmoved"
    assert outcome.status in ("inert", "inaccurate")
    assert "0.weight did not move" in stage(outcome, "step0").reason
    assert stage(outcome, "movement").status != "ok"


@pytest.mark.parametrize("setting", [{"eps": 1e-4}, {"betas": (0.9, 0.99)}, {"lr": 0.0031}, {"weight_decay": 0.0}])
def test_a_wrong_setting_of_the_optimizer_is_seen(run_case: Run, setting: dict[str, Any]) -> None:
    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, **({"lr": 0.003} | (setting if on_device(parameters) else {})))

    outcome = run_case(*training(f"setting.{setting}", make), "bf16-mixed")
    assert outcome.status == "inaccurate"
    assert outcome.stage in ("step0", "step5")


def test_steps_that_are_lost_between_the_anchors_show_in_the_movement(run_case: Run) -> None:
    outcome = run_case(*training("sleeping", sleeping(torch.optim.SGD, lr=0.1)), "bf16-mixed")
    assert (outcome.status, outcome.stage, outcome.code) == ("inaccurate", "movement", "movement")


def test_steps_that_are_lost_between_the_anchors_show_in_the_fall_of_the_loss(run_case: Run) -> None:
    outcome = run_case(*training("sleeping.adamw", sleeping(torch.optim.AdamW, lr=0.003)), "bf16-mixed")
    assert (outcome.status, outcome.stage, outcome.code) == ("inaccurate", "movement", "fall")


def test_a_loop_inside_one_autocast_region_never_moves_its_loss(run_case: Run) -> None:
    """Flow-Factory PR 186: casts of weights that the outer region cached go stale."""
    with torch.autocast("cpu", torch.bfloat16):
        outcome = run_case(*training("stale"), "bf16-mixed")
    assert stage(outcome, "step0").status == "ok"
    assert stage(outcome, "step5").status == "inaccurate"
    assert stage(outcome, "movement").status in ("inert", "inaccurate")
    assert len(set(stage(outcome, "movement").curves["loss"])) == 1


def test_adam_in_float16_is_nonfinite_and_says_why(run_case: Run) -> None:
    """pytorch#8860."""
    draw = Draw("test.training.eps")
    case = Training(Transformer, sentences(draw), F.cross_entropy, adamw)
    outcome = run_case(case, draw, "fp16-true")
    assert (outcome.status, outcome.code) == ("nonfinite", "format")
    assert "eps" in outcome.reason


def test_nothing_after_a_parameter_that_is_nan_is_judged(run_case: Run) -> None:
    def explode(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=float("inf") if on_device(parameters) else 0.1)

    outcome = run_case(*training("explode", explode), "fp32")
    assert outcome.status == "nonfinite"
    assert [s.name for s in outcome.stages] == ["build", "step0", "step5"]
    assert "after" in outcome.stages[-1].reason


def test_updates_that_vanish_in_the_format_show_in_the_movement(run_case: Run) -> None:
    draw = Draw("test.training.vanish")
    case = Training(Transformer, sentences(draw), F.cross_entropy, lambda p: torch.optim.SGD(p, lr=1e-3))
    movement = stage(run_case(case, draw, "bf16-true"), "movement")
    assert movement.status in ("inert", "inaccurate")
    assert stage(run_case(case, draw, "bf16-mixed"), "movement").status == "ok"


def test_a_training_leaves_its_case_as_it_was(run_case: Run) -> None:
    case, draw = training("pure")
    before = copy.deepcopy(case.batch)
    first, again = (run_case(replace(case), draw, "fp16-mixed") for _ in range(2))
    assert [s.errors for s in first.stages] == [s.errors for s in again.stages]
    assert all(torch.equal(a, b) for a, b in zip(before, case.batch, strict=True))


def test_state_that_is_wrong_is_seen_and_kept(run_case: Run) -> None:
    class Forgetful(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            group = self.param_groups[0]["params"]
            if on_device(group):
                self.state[group[1]]["exp_avg_sq"].mul_(0.5)
                self.state[group[3]]["exp_avg"].mul_(0.5)

    found = stage(run_case(*training("forgetful", lambda p: Forgetful(p, lr=0.003)), "bf16-mixed"), "step0")
    assert (found.status, found.reason.partition(":")[0]) == ("inaccurate", "0.bias exp_avg_sq")
    assert {"0.bias exp_avg_sq", "2.bias exp_avg"} <= {e.name for e in found.errors}


class OnceInfinite(torch.autograd.Function):
    """The identity whose backward gives Inf at its third call: one overflowing step among sound ones."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        OnceInfinite.calls += 1
        return grads[0] * (float("inf") if OnceInfinite.calls == 3 else 1.0)


class Overflowing(MLP):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        low = torch.is_autocast_enabled("cpu")
        return OnceInfinite.apply(y) if low else y  # type: ignore[no-untyped-call,no-any-return]


def test_a_step_that_the_scaler_skipped_is_seen(run_case: Run) -> None:
    OnceInfinite.calls = 0
    outcome = run_case(*training("skipped", sgd, Overflowing), "fp16-mixed")
    assert stage(outcome, "step5").code == "skipped_step"
    assert stage(outcome, "step5").numbers["scale"] == 512.0


# --- one step


def lr_off(run_case: Run, optimizer: Any, precision: str, factor: float) -> Outcome:
    """Two steps of an optimizer on weights near 1, whose learning rate on the device is off by a factor."""
    draw = Draw(f"test.update.{precision}")
    weights = draw.normal(64, 64, scale=0.25)
    fed = draw.normal(64, 64)

    def run(lab: Lab) -> None:
        def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
            made: torch.optim.Optimizer = optimizer(parameters)
            if on_device(parameters):
                made.param_groups[0]["lr"] *= factor
            return made

        weight = nn.Parameter(lab.place(weights))
        device = make([weight])
        for name in ("first", "second"):
            with lab.stage(name) as draft:
                weight.grad = lab.place(fed)
                judged_step(lab, draft, {"weight": weight}, device, make, device.step)

    return run_case(Script(run), draw, precision)


@pytest.mark.parametrize("optimizer", [sgd, adamw])
@pytest.mark.parametrize(
    ("precision", "factors"),
    [(p, (0.9, 1.1)) for p in ("fp32", "bf16-mixed", "fp16-mixed")] + [("bf16-true", (0.5, 1.5))],
)
def test_a_learning_rate_that_is_off_is_seen(
    run_case: Run, optimizer: Any, precision: str, factors: tuple[float, float]
) -> None:
    assert lr_off(run_case, optimizer, precision, 1.0).status == "ok"
    for factor in factors:
        assert (lr_off(run_case, optimizer, precision, factor).status, factor) == ("inaccurate", factor)


def test_a_value_may_move_to_a_neighbour_and_no_further() -> None:
    before = torch.tensor([1.0, 1.0, 0.0]).double()
    right = before + torch.tensor([0.25, 0.25, 2.0**-20]).double()
    space = spacing(right, before, torch.bfloat16)
    assert space.tolist() == [2.0**-7, 2.0**-7, 2.0**-27]
    for neighbours, status in ((1, "ok"), (6, "inaccurate")):
        draft = Draft("step")
        off = torch.tensor([neighbours * 2.0**-7, 0.0, 0.0])
        judge_update(draft, "x", right - before + off, right - before, space, 2.0**-7)
        assert draft.status == status
