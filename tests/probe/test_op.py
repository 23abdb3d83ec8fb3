from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from amp_matrix.survey import Outcome, Status, TensorError
from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.harness.op import place, reference
from amp_probe.harness.recorder import Fault
from amp_probe.ideal import Ideal
from amp_probe.probes.attention import attention
from amp_probe.probes.matmul import linear, matmul

RunCell = Callable[..., Outcome]
Errors = Callable[[Outcome], dict[tuple[str, str], TensorError]]
LOW = ("bf16-mixed", "fp16-mixed", "bf16-true", "fp16-true")
CPU = torch.device("cpu")


def unary(function: Callable[[Tensor], Tensor], draw: Draw, **options: object) -> Op:
    return Op(fn=lambda x: function(x), args={"x": Arg(draw.normal(40, 40), grad=True)}, **options)  # type: ignore[arg-type]


def scaled_linear(draw: Draw, weight_scale: Tensor | float = 0.125) -> Op:
    """A linear layer as initialised in models: outputs near 1, a bias of 0.05."""
    args = {
        "x": Arg(draw.normal(48, 64), grad=True),
        "weight": Arg((draw.normal(56, 64) * weight_scale).bfloat16().double(), grad=True),
        "bias": Arg(torch.full((56,), 0.05, dtype=torch.float64).bfloat16().double(), grad=True),
    }
    return Op(fn=lambda x, weight, bias: F.linear(x, weight, bias), args=args)


def in_steps(x: Tensor, y: Tensor) -> Tensor:
    """x @ y with an accumulator of their own dtype."""
    total = torch.zeros(x.shape[0], y.shape[1], dtype=x.dtype)
    for k in range(x.shape[1]):
        total = total + x[:, k : k + 1] * y[k : k + 1]
    return total


def rounded_to_bf16(x: Tensor, y: Tensor) -> Tensor:
    return (x.bfloat16().float() @ y.bfloat16().float()).to(x.dtype)


# --- stages


@pytest.mark.parametrize("precision", ["fp32", *LOW])
def test_stages_of_a_sound_cell(run_cell: RunCell, precision: str) -> None:
    draw = Draw("op.linear")
    outcome = run_cell(linear(draw), draw, precision)
    assert outcome.status is Status.OK
    assert [s.name for s in outcome.stages] == ["build", "infer", "forward", "backward"]
    judged = [[e.name for e in s.errors] for s in outcome.stages]
    assert judged == [[], ["output"], ["output"], ["grad x", "grad weight", "grad bias"]]


def test_observed_dtypes_are_recorded(run_cell: RunCell) -> None:
    draw = Draw("op.linear")
    mixed = {s.name: s.dtypes for s in run_cell(linear(draw), draw, "bf16-mixed").stages}
    assert mixed["infer"] == {"output": "bfloat16"}
    assert mixed["backward"]["grad weight"] == "float32"
    true = {s.name: s.dtypes for s in run_cell(linear(draw), draw, "fp16-true").stages}
    assert true["backward"]["grad weight"] == "float16"


def test_a_case_without_backward_stops_at_forward(run_cell: RunCell) -> None:
    draw = Draw("test.relu")
    assert [s.name for s in run_cell(unary(torch.relu, draw, backward=False), draw, "fp32").stages][-1] == "forward"


def test_a_stage_whose_references_are_all_nan_judges_nothing(run_cell: RunCell) -> None:
    draw = Draw("test.nothing")
    outcome = run_cell(unary(lambda x: x * torch.nan, draw), draw, "fp32")
    assert (outcome.status, outcome.stage) == (Status.ERROR, "infer")


@pytest.mark.parametrize("factor", [1.0, 1.2])
def test_where_no_ideal_run_can_be_made_one_wrong_row_shows(run_cell: RunCell, factor: float) -> None:
    def one_row(x: Tensor, *args: object) -> Tensor:
        out = torch._softmax(x, *args)  # type: ignore[arg-type]
        out[3] *= factor
        return out

    def softmax(x: Tensor) -> Tensor:
        if _get_current_dispatch_mode_stack() and type(_get_current_dispatch_mode_stack()[-1]) is Ideal:
            raise NotImplementedError("no ideal here")
        return torch.softmax(x, -1)

    draw = Draw("test.no_ideal")
    outcome = run_cell(unary(softmax, draw, backward=False), draw, "bf16-true", {"aten::_softmax": one_row})
    assert (outcome.status is Status.OK) is (factor == 1.0)
    assert outcome.code == ("" if factor == 1.0 else "s")
    assert outcome.notes == (() if factor == 1.0 else ("no ideal run: NotImplementedError",))


def test_an_operator_that_refuses_is_unsupported_where_it_refuses(run_cell: RunCell) -> None:
    def refuse(*_: object) -> Tensor:
        raise NotImplementedError("\"bmm\" not implemented for 'Half'")

    draw = Draw("op.matmul")
    outcome = run_cell(matmul(draw), draw, "fp16-true", {"aten::mm": refuse})
    assert (outcome.status, outcome.stage) == (Status.UNSUPPORTED, "infer")


def test_the_reference_is_computed_once_per_probe_and_variant() -> None:
    draw = Draw("test.once")
    case = unary(torch.relu, draw)
    assert reference(case, draw) is reference(case, draw)
    assert reference(case, Draw("test.once", "other")) is not reference(case, draw)


# --- building


def test_inputs_that_the_dtype_cannot_hold_are_the_probes_mistake() -> None:
    arg = Arg(torch.tensor([1.0 + 2**-12], dtype=torch.float64))
    assert place(arg, torch.float32, CPU).dtype is torch.float32
    with pytest.raises(ValueError, match="not exact in bfloat16"):
        place(arg, torch.bfloat16, CPU)


def test_a_layout_is_applied_after_the_cast_and_its_strides_hold() -> None:
    arg = Arg(Draw("x").normal(6, 4), grad=True, layout=lambda t: t.T, strides=(1, 4))
    tensor = place(arg, torch.bfloat16, CPU)
    assert (tensor.stride(), tensor.requires_grad, tensor.is_leaf) == ((1, 4), True, True)


def test_a_layout_with_other_strides_is_an_error() -> None:
    arg = Arg(Draw("x").normal(6, 4), layout=lambda t: t.T.contiguous(), strides=(1, 4))
    with pytest.raises(Fault) as caught:
        place(arg, torch.float32, CPU)
    assert (caught.value.status, caught.value.code) == (Status.ERROR, "strides")


def test_integer_inputs_are_not_shared_between_cells() -> None:
    arg = Arg(torch.tensor([1, 2, 3]))
    place(arg, torch.float32, CPU).zero_()
    assert arg.value.tolist() == [1, 2, 3]


# --- the precision asked for


@pytest.mark.parametrize(
    ("precision", "dtype", "status"),
    [
        ("bf16-true", torch.float32, Status.INERT),
        ("fp16-true", torch.float32, Status.INERT),
        ("fp16-true", torch.bfloat16, Status.INERT),
        ("bf16-mixed", torch.float16, Status.INERT),
        ("fp32", torch.bfloat16, Status.INERT),
        ("fp32", torch.float32, Status.OK),
        ("bf16-mixed", torch.float32, Status.OK),
        ("bf16-mixed", torch.bfloat16, Status.OK),
    ],
)
def test_outputs_in_another_dtype(run_cell: RunCell, precision: str, dtype: torch.dtype, status: Status) -> None:
    draw = Draw("test.cast")
    outcome = run_cell(unary(lambda x: x.to(dtype), draw, backward=False), draw, precision)
    assert outcome.status is status


@pytest.mark.parametrize("wide", [True, False])
def test_a_wide_case_may_give_float32(run_cell: RunCell, wide: bool) -> None:
    draw = Draw("test.wide")
    case = unary(lambda x: (x.double() if x.dtype is torch.float64 else x.float()).exp(), draw, wide=wide)
    assert run_cell(case, draw, "bf16-true").status is (Status.OK if wide else Status.INERT)


def test_an_argument_without_a_gradient_is_a_fault(run_cell: RunCell) -> None:
    draw = Draw("test.lost")
    args = {"x": Arg(draw.normal(8, 8), grad=True), "y": Arg(draw.normal(8, 8), grad=True)}
    lost = Op(fn=lambda x, y: x * (y if y.dtype is torch.float64 else y.detach()), args=args)
    outcome = run_cell(lost, draw, "bf16-true")
    assert (outcome.status, outcome.stage, outcome.code) == (Status.INACCURATE, "backward", "no_gradient")


def test_an_invariant_that_does_not_hold_is_inaccurate(run_cell: RunCell) -> None:
    draw = Draw("test.invariant")
    outcome = run_cell(unary(torch.relu, draw, invariants=(lambda outputs: "wrong",)), draw, "fp32")
    assert (outcome.status, outcome.code, outcome.reason) == (Status.INACCURATE, "invariant", "wrong")


# --- what must be flagged


@pytest.mark.parametrize("precision", ["fp16-true", "fp16-mixed"])
def test_fp16_asked_and_bf16_computed(run_cell: RunCell, precision: str) -> None:
    draw = Draw("op.matmul")
    outcome = run_cell(matmul(draw), draw, precision, {"aten::mm": rounded_to_bf16_out})
    assert outcome.status is Status.INACCURATE
    assert {s.name for s in outcome.stages if s.status is Status.INACCURATE} == {"infer", "forward", "backward"}


def rounded_to_bf16_out(x: Tensor, y: Tensor) -> Tensor:
    return (x.bfloat16() @ y.bfloat16()).to(x.dtype)


@pytest.mark.parametrize("precision", LOW)
def test_a_small_bias_dropped(run_cell: RunCell, precision: str) -> None:
    draw = Draw("test.linear")
    assert run_cell(scaled_linear(draw), draw, precision).status is Status.OK
    outcome = run_cell(scaled_linear(Draw("test.linear")), draw, precision, {"aten::addmm": lambda bias, x, y: x @ y})
    assert (outcome.status, outcome.stage) == (Status.INACCURATE, "infer")


@pytest.mark.parametrize("precision", LOW)
def test_a_faint_channel_zeroed(run_cell: RunCell, errors: Errors, precision: str) -> None:
    def zero_channel_3(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
        out = torch.addmm(bias, x, y)
        out[:, 3] = 0.0
        return out

    draw = Draw("test.linear", "faint")
    scale = torch.full((56, 1), 0.125, dtype=torch.float64)
    scale[3] *= 0.01
    case = scaled_linear(draw, scale)
    case.args["bias"].value[3] = 0.0
    outcome = run_cell(case, draw, precision, {"aten::addmm": zero_channel_3})
    assert (outcome.status, outcome.stage, outcome.code) == (Status.INACCURATE, "infer", "s")
    assert errors(outcome)["infer", "output"].n < 1.5


def attention_kernel(allowed: Tensor) -> Callable[..., tuple[Tensor, Tensor]]:
    """A fused attention kernel that lets row i see the columns allowed to it, whatever is asked."""

    def kernel(q: Tensor, k: Tensor, v: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        scores = (q.float() @ k.float().mT / 4).masked_fill(~allowed, -torch.inf)
        return (torch.softmax(scores, -1) @ v.float()).to(q.dtype), torch.logsumexp(scores, -1)

    return kernel


def causal_with(run_cell: RunCell, allowed: Tensor, precision: str) -> Outcome:
    draw = Draw("op.attention", "causal")
    kernels = {"aten::_scaled_dot_product_flash_attention_for_cpu": attention_kernel(allowed)}
    return run_cell(attention(draw), draw, precision, kernels)


@pytest.mark.parametrize("precision", ["fp32", *LOW])
def test_the_attention_kernel_of_these_tests_is_right_when_it_is_causal(run_cell: RunCell, precision: str) -> None:
    assert causal_with(run_cell, torch.ones(64, 64, dtype=torch.bool).tril(), precision).status is Status.OK


@pytest.mark.parametrize("precision", LOW)
def test_one_future_token_leaks_into_late_rows(run_cell: RunCell, errors: Errors, precision: str) -> None:
    allowed = torch.ones(64, 64, dtype=torch.bool).tril()
    allowed[50:] = torch.ones(64, 64, dtype=torch.bool).tril(1)[50:]
    outcome = causal_with(run_cell, allowed, precision)
    assert (outcome.status, outcome.stage) == (Status.INACCURATE, "infer")
    first = errors(outcome)["infer", "output 0"]
    assert first.n > first.n_limit
    assert first.s > first.s_limit


def test_changing_the_future_moves_the_past(run_cell: RunCell) -> None:
    outcome = causal_with(run_cell, torch.ones(64, 64, dtype=torch.bool).tril(5), "fp32")
    assert outcome.status is Status.INACCURATE
    outputs = Draw("x").normal(2, 2, 3, 64, 16).unbind()
    (past_unmoved,) = attention(Draw("op.attention", "causal")).invariants
    assert past_unmoved(outputs) != ""
    assert past_unmoved((outputs[0], outputs[0])) == ""


@pytest.mark.parametrize("precision", LOW)
def test_accumulation_in_the_low_dtype_over_64_terms(run_cell: RunCell, precision: str) -> None:
    draw = Draw("op.matmul")
    outcome = run_cell(matmul(draw), draw, precision, {"aten::mm": in_steps})
    assert (outcome.status, outcome.stage) == (Status.INACCURATE, "infer")


@pytest.mark.parametrize("probe", [matmul, linear])
def test_float32_downgraded_to_bf16_shows_on_full_mantissas(
    run_cell: RunCell, errors: Errors, probe: Callable[[Draw], Op]
) -> None:
    kernels = {
        "aten::mm": rounded_to_bf16,
        "aten::addmm": lambda bias, x, y: bias + rounded_to_bf16(x, y),
    }
    draw = Draw(f"op.{probe.__name__}", "full_mantissa")
    assert run_cell(probe(draw), draw, "fp32").status is Status.OK
    outcome = run_cell(probe(Draw(draw.probe, draw.variant)), draw, "fp32", kernels)
    assert (outcome.status, outcome.stage) == (Status.INACCURATE, "infer")
    assert errors(outcome)["infer", "output"].n > 1000


def test_the_real_medium_setting_shows_where_the_cpu_obeys_it(run_cell: RunCell) -> None:
    draw, before = Draw("op.matmul", "full_mantissa"), torch.get_float32_matmul_precision()
    x = draw.full_mantissa(48, 64).float()
    full = x @ x.mT
    try:
        torch.set_float32_matmul_precision("medium")
        obeyed = not torch.allclose(x @ x.mT, full, rtol=1e-5, atol=1e-5)
        outcome = run_cell(matmul(Draw("op.matmul", "full_mantissa")), draw, "fp32")
    finally:
        torch.set_float32_matmul_precision(before)
    assert (outcome.status is Status.INACCURATE) is obeyed


def in_tf32(x: Tensor, y: Tensor) -> Tensor:
    """x @ y with operands rounded to 10 mantissa bits, as tensor cores round them."""
    return _ten_bits(x) @ _ten_bits(y)


def _ten_bits(x: Tensor) -> Tensor:
    bits = x.contiguous().view(torch.int32)
    return torch.bitwise_and(bits + 0x1000, ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("probe", [matmul, linear])
def test_tf32_that_was_asked_for_and_not_used_is_inert(run_cell: RunCell, probe: Callable[[Draw], Op]) -> None:
    draw = Draw(f"op.{probe.__name__}", "full_mantissa")
    kernels = {"aten::mm": in_tf32, "aten::addmm": lambda bias, x, y: bias + in_tf32(x, y)}
    assert run_cell(probe(draw), draw, "tf32", kernels).status is Status.OK
    plain = run_cell(probe(Draw(draw.probe, draw.variant)), draw, "tf32")
    assert [(s.status, s.code) for s in plain.stages[1:]] == [(Status.INERT, "tf32")] * 3


def test_a_backward_that_leaves_tf32_is_inert(run_cell: RunCell) -> None:
    calls: list[int] = []

    def forward_only(x: Tensor, y: Tensor) -> Tensor:
        calls.append(1)
        return in_tf32(x, y) if len(calls) <= 2 else x @ y

    draw = Draw("op.matmul", "full_mantissa")
    outcome = run_cell(matmul(draw), draw, "tf32", {"aten::mm": forward_only})
    assert (outcome.status, outcome.stage, outcome.code) == (Status.INERT, "backward", "tf32")


def test_an_exact_case_must_be_equal(run_cell: RunCell) -> None:
    draw = Draw("op.matmul", "exact")
    assert run_cell(matmul(draw), draw, "bf16-true").status is Status.OK
    outcome = run_cell(matmul(Draw("op.matmul", "exact")), draw, "bf16-true", {"aten::mm": lambda x, y: x @ y * 1.01})
    assert (outcome.status, outcome.code) == (Status.INACCURATE, "exact")


def test_nan_on_the_device_is_nonfinite(run_cell: RunCell) -> None:
    def poison(x: Tensor, y: Tensor) -> Tensor:
        out = x @ y
        out[0, 0] = torch.nan
        return out

    draw = Draw("op.matmul")
    outcome = run_cell(matmul(draw), draw, "bf16-true", {"aten::mm": poison})
    assert (outcome.status, outcome.stage, outcome.code) == (Status.NONFINITE, "infer", "backend")


def test_overflow_that_any_implementation_has_is_the_formats(run_cell: RunCell) -> None:
    draw = Draw("test.overflow")
    case = unary(lambda x: (x * 200.0) * (x * 200.0) * 2.0**-20, draw)
    outcome = run_cell(case, draw, "fp16-true")
    assert (outcome.status, outcome.code) == (Status.NONFINITE, "format")


@pytest.mark.parametrize("precision", ["bf16-mixed", "fp16-mixed"])
def test_a_cast_that_is_wrong_is_not_judged_against_itself(run_cell: RunCell, precision: str) -> None:
    def off(x: Tensor, **how: object) -> Tensor:
        cast: Tensor = torch.ops.aten._to_copy(x, **how)
        low = cast.dtype in (torch.bfloat16, torch.float16)
        return cast * (1.0 + 4.0 * torch.finfo(cast.dtype).eps) if low else cast

    draw = Draw("op.matmul", "full_mantissa")
    outcome = run_cell(matmul(draw), draw, precision, {"aten::_to_copy": off})
    assert (outcome.status, outcome.stage) == (Status.INACCURATE, "infer")


def test_a_halved_gradient_is_flagged_though_outputs_are_right(run_cell: RunCell) -> None:
    def halved(grad: Tensor, *args: object, **kwargs: object) -> Tensor:
        return torch.ops.aten._softmax_backward_data(grad * 0.5, *args, **kwargs)  # type: ignore[no-any-return]

    draw = Draw("test.softmax")
    case = unary(lambda x: torch.softmax(x, -1), draw)
    outcome = run_cell(case, draw, "bf16-true", {"aten::_softmax_backward_data": halved})
    assert (outcome.status, outcome.stage) == (Status.INACCURATE, "backward")


# --- what must pass


def eight_blocks(x: Tensor, weights: Tensor) -> Tensor:
    for weight in weights:
        x = F.layer_norm(torch.relu(F.linear(x, weight)), x.shape[-1:])
    return x


@pytest.mark.parametrize("precision", ["fp32", *LOW])
def test_eight_blocks_of_linear_relu_layer_norm_pass(run_cell: RunCell, errors: Errors, precision: str) -> None:
    draw = Draw("test.chain", salt=1)
    weights = (draw.normal(8, 64, 64) * 0.125).bfloat16().double()
    args = {"x": Arg(draw.normal(48, 64), grad=True), "weights": Arg(weights, grad=True)}
    outcome = run_cell(Op(fn=eight_blocks, args=args), draw, precision)
    assert outcome.status is Status.OK, outcome.reason
    if precision.endswith("true"):
        assert errors(outcome)["backward", "grad x"].n > 1.5, "the chain is hard, and only the ideal says so"


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * 0.25, -1) @ v


@pytest.mark.parametrize("precision", ["fp32", *LOW])
def test_attention_by_hand_with_large_logits_passes(run_cell: RunCell, errors: Errors, precision: str) -> None:
    draw = Draw("test.attention")
    args = {n: Arg(draw.normal(2, 64, 16, scale=4.0 if n != "v" else 1.0), grad=True) for n in "qkv"}
    outcome = run_cell(Op(fn=by_hand, args=args), draw, precision)
    assert outcome.status is Status.OK, outcome.reason
    if precision == "bf16-true":
        assert errors(outcome)["infer", "output"].s > 2.0
