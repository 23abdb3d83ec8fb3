"""A model's gradients at given parameters: in float64, in the ideal, and judged."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from amp_matrix.precision import parse
from amp_probe.draw import Draw
from amp_probe.harness.problem import Problem, counting, judge_gradients, problem
from amp_probe.harness.recorder import Recorder
from amp_probe.harness.script import Lab
from amp_probe.probes.models import MLP, numbers, squared_error

DRAW = Draw("test.problem")


@pytest.fixture
def posed() -> Problem:
    return problem(MLP, squared_error, numbers(DRAW), DRAW)


def lab(precision: str = "bf16-mixed") -> Lab:
    return Lab(torch.device("cpu"), parse(precision), DRAW, Recorder(lambda name: None, lambda stage: None))


def exact(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: v.detach().double() for name, v in values.items()}


def test_the_model_is_the_same_whatever_was_seeded_and_every_precision_holds_it() -> None:
    torch.manual_seed(1)
    first = problem(MLP, squared_error, numbers(DRAW), DRAW).module.state_dict()
    torch.manual_seed(2)
    again = problem(MLP, squared_error, numbers(DRAW), DRAW).module.state_dict()
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert torch.equal(value, value.bfloat16().float())
        assert torch.equal(value, value.half().float())


def test_building_a_model_leaves_the_seed_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    problem(MLP, squared_error, numbers(DRAW), DRAW)
    assert torch.equal(torch.rand(1), expected)


def test_exact_gradients_are_those_of_finite_differences(posed: Problem) -> None:
    values = exact(dict(posed.module.named_parameters()))
    _, gradients = posed.exact(values)
    for name in ("0.weight", "4.bias"):
        step = torch.zeros_like(values[name])
        step.view(-1)[3] = 1e-6
        above, below = (posed.exact(values | {name: values[name] + s})[0] for s in (step, -step))
        assert (above - below) / 2e-6 == pytest.approx(float(gradients[name].view(-1)[3]), rel=1e-6)


def test_the_ideal_is_of_the_parameters_as_they_were(posed: Problem) -> None:
    values = {name: p.detach().clone() for name, p in posed.module.named_parameters()}
    before = posed.ideal(lab(), values)()
    late = posed.ideal(lab(), values)
    for value in values.values():
        value.mul_(2.0)
    after = late()
    assert before is not None
    assert after is not None
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_scale_of_the_loss_is_taken_out_again(posed: Problem) -> None:
    values = dict(posed.module.named_parameters())
    plain, scaled = posed.ideal(lab(), values)(), posed.ideal(lab(), values, 1024.0)()
    assert plain is not None
    assert scaled is not None
    assert all(torch.allclose(plain[name], scaled[name], rtol=1e-6) for name in plain)


def test_what_has_next_to_no_gradient_need_not_have_one() -> None:
    ones = torch.ones(4, dtype=torch.float64)
    assert counting({"a": ones, "b": ones * 1e-5, "c": ones * 1e-7}) == {"a", "b"}


def _judged(posed: Problem, spoil: str, value: Tensor | None) -> tuple[str, str]:
    place = lab("fp32")
    model = posed.on(place)
    _, right = posed.exact(dict(model.named_parameters()))
    with place.stage("backward") as draft:
        posed.loss(model(place.place(posed.batch[0])), place.place(posed.batch[1])).backward()
        if spoil:
            dict(model.named_parameters())[spoil].grad = value
        judge_gradients(place, draft, model, right, lambda: None)
    return str(draft.status), draft.code


def test_gradients_are_fine_as_they_come(posed: Problem) -> None:
    assert _judged(posed, "", None) == ("ok", "")


@pytest.mark.parametrize(
    ("value", "code"), [(None, "no_gradient"), (torch.zeros(64), "zero_gradient"), (torch.ones(64), "n")]
)
def test_a_gradient_that_is_missing_zero_or_wrong_is_inaccurate(
    posed: Problem, value: Tensor | None, code: str
) -> None:
    assert _judged(posed, "0.bias", value) == ("inaccurate", code)


def test_a_gradient_that_is_nan_is_nonfinite(posed: Problem) -> None:
    assert _judged(posed, "0.bias", torch.full((64,), float("nan")))[0] == "nonfinite"


@pytest.mark.skipif(not hasattr(nn.Parameter, "grad_dtype"), reason="this torch ties a gradient to its tensor's dtype")
def test_a_gradient_of_another_dtype_is_inert(posed: Problem) -> None:
    place = lab("fp32")
    model = posed.on(place)
    _, right = posed.exact(dict(model.named_parameters()))
    for name, parameter in model.named_parameters():
        parameter.grad_dtype = torch.bfloat16
        parameter.grad = right[name].bfloat16()
    with place.stage("backward") as draft:
        judge_gradients(place, draft, model, {n: g.bfloat16().double() for n, g in right.items()}, lambda: None)
    assert (draft.status, draft.code) == ("inert", "dtype")
