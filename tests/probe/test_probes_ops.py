from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from amp_matrix.cell_id import parse
from amp_matrix.survey import Outcome, Status, cell_id
from amp_probe.case import Op
from amp_probe.draw import Draw
from amp_probe.harness.op import reference
from amp_probe.probes import activation, attention, conv, embedding, loss, matmul, norm

RunCell = Callable[..., Outcome]
FAMILIES = (matmul, activation, norm, attention, conv, embedding, loss)
PROBES = [p for family in FAMILIES for p in family.PROBES]
VARIANTS = {(p.name, v): p for p in PROBES for v in p.variants}
ESSENTIAL = {
    "op.matmul": ("base", "exact", "transposed", "square", "k1000", "row"),
    "op.linear": ("base", "exact", "transposed", "square", "k1000", "row"),
    "op.attention": ("base", "causal", "q1"),
    "op.embedding": ("base",),
    "op.softmax": ("base",),
    "op.layer_norm": ("base",),
    "op.rms_norm": ("base",),
    "op.gelu": ("base",),
    "op.silu": ("base",),
    "op.cross_entropy": ("base",),
    "op.mse": ("base",),
}
aten = torch.ops.aten


def case_of(name: str, variant: str = "base") -> tuple[Op, Draw]:
    draw = Draw(name, variant)
    case = VARIANTS[name, variant].make(draw)
    assert isinstance(case, Op)
    return case, draw


@pytest.fixture(autouse=True)
def _advice() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch says that a kernel is slow or not fused
        yield


# --- declarations


def test_no_cell_is_declared_twice_and_every_id_can_be_typed() -> None:
    ids = [cell_id(p.name, v, c) for p in PROBES for v in p.variants for c in p.precisions]
    assert len(ids) == len(set(ids))
    assert all(str(parse(text)) == text for text in ids)


def test_the_essential_cells_are_there_in_every_precision() -> None:
    for name, variants in ESSENTIAL.items():
        for variant in variants:
            assert len(VARIANTS[name, variant].precisions) == 6, (name, variant)


def test_every_probe_has_a_stress_variant_and_says_what_it_would_catch() -> None:
    for name in {p.name for p in PROBES}:
        extra = {v for n, v in VARIANTS if n == name} - set(ESSENTIAL.get(name, ("base",)))
        assert extra, name
    assert all("Would have caught" in (p.make.__doc__ or "") for p in PROBES)


@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=str)
def test_inputs_are_exact_in_both_low_dtypes_unless_they_must_not_be(name: str, variant: str) -> None:
    case, _ = case_of(name, variant)
    values = [a.value for a in case.args.values() if a.value.is_floating_point()]
    exact = all(torch.equal(v.to(d).double().nan_to_num(), v.nan_to_num()) for v in values for d in LOW_DTYPES)
    assert exact == (variant != "full_mantissa")
    assert all(bool(v.any()) for v in values)


LOW_DTYPES = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=str)
def test_every_gradient_of_the_reference_is_there_and_not_zero(name: str, variant: str) -> None:
    case, draw = case_of(name, variant)
    right = reference(case, draw)
    if case.backward:
        assert set(right.gradients) == {n for n, a in case.args.items() if a.grad}
        assert all(bool(g.any()) for g in right.gradients.values())
        assert right.gradients, "nothing is judged in backward"


@pytest.mark.parametrize("name", sorted({p.name for p in PROBES}))
def test_sums_of_base_have_at_most_64_terms(name: str) -> None:
    case, _ = case_of(name)
    sizes = {n: tuple(a.value.shape) for n, a in case.args.items()}
    if name == "op.conv2d":
        (batch, channels, side, _), outs = sizes["x"], sizes["weight"][0]
        assert max(channels * 9, outs * 9, batch * (side - 2) ** 2) <= 64
    elif name == "op.mse":
        assert case.args["x"].value.numel() <= 64
    elif name in ("op.gelu", "op.silu"):
        assert sizes["x"]  # sums nothing
    elif name == "op.embedding":
        assert torch.bincount(case.args["index"].value.flatten()).max() <= 64
    elif name == "op.linear":
        assert max(sizes["weight"]) <= 64
        assert sizes["x"][0] * sizes["x"][1] <= 64
    else:
        assert all(max(shape) <= 64 for shape in sizes.values())


# --- this CPU


@pytest.mark.parametrize(("name", "variant"), VARIANTS, ids=str)
def test_float32_is_sound_here(run_cell: RunCell, name: str, variant: str) -> None:
    case, draw = case_of(name, variant)
    outcome = run_cell(case, draw, "fp32")
    assert outcome.status is Status.OK, outcome.reason
    assert outcome.notes == ()


@pytest.mark.parametrize("precision", ["bf16-mixed", "fp16-mixed", "bf16-true", "fp16-true"])
@pytest.mark.parametrize(("name", "variant"), [(n, v) for n, vs in ESSENTIAL.items() for v in vs], ids=str)
def test_essential_cells_raise_no_false_alarm_here(run_cell: RunCell, name: str, variant: str, precision: str) -> None:
    case, draw = case_of(name, variant)
    outcome = run_cell(case, draw, precision)
    assert outcome.status in (Status.OK, Status.UNSUPPORTED), outcome.reason
    assert outcome.notes == ()


# --- faults that each probe must see: a wrong kernel, the cell that shows it, and the stage


def one_rowwise(x: Tensor, *args: object) -> Tensor:
    """A softmax that forgets to subtract the maximum."""
    exponentials = x.exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


def without_weight(x: Tensor, shape: object, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
    return tuple(aten.native_layer_norm(x, shape, torch.ones_like(weight), bias, eps))


def sticking(grad: Tensor, index: Tensor, rows: int, *_: object) -> Tensor:
    """An embedding's backward that adds in the low dtype, one look-up after the other."""
    table = grad.new_zeros(rows, grad.shape[-1])
    for row, g in zip(index.flatten().tolist(), grad.reshape(-1, grad.shape[-1]), strict=True):
        table[row] += g
    return table


def counting_padding(logp: Tensor, target: Tensor, weight: None, reduction: int, ignored: int) -> tuple[Tensor, Tensor]:
    loss, _ = aten.nll_loss_forward(logp, target, weight, reduction, ignored)
    return loss * (target != ignored).sum() / target.numel(), logp.new_tensor(float(target.numel()))


def no_bias(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: object) -> Tensor:
    return aten.convolution(x, weight, None, *rest)  # type: ignore[no-any-return]


def tail(x: Tensor, **_: object) -> Tensor:
    """A gelu by its tanh form in the low dtype: x cubed overflows fp16, and inf times 0 is NaN."""
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x))) + 0 * (x * x * x)


def poisoning(x: Tensor, y: Tensor) -> Tensor:
    out = aten.mm(x, y)
    out[7] = out[7] + out[5]
    return out  # type: ignore[no-any-return]


def transposed_is_ignored(x: Tensor, y: Tensor) -> Tensor:
    """A product that reads a transposed view as if it were dense."""
    dense = y if y.is_contiguous() else y.as_strided(y.shape, (y.shape[1], 1))
    return aten.mm(x, dense)  # type: ignore[no-any-return]


def channels_last_is_ignored(x: Tensor, *rest: object) -> Tensor:
    dense = x if x.is_contiguous() else x.as_strided(x.shape, torch.empty(x.shape).stride())
    return aten.convolution(dense, *rest)  # type: ignore[no-any-return]


def squares(x: Tensor, target: Tensor, *_: object) -> Tensor:
    """A mean squared error that adds in the low dtype and divides at the end."""
    total = x.new_zeros(())
    for part in ((x - target) ** 2).flatten().split(64):
        total = total + part.sum()
    return total / x.numel()


def no_exponential_guard(x: Tensor) -> Tensor:
    grown = x.exp()
    return x * (grown / (1 + grown))


FAULTS = [
    ("op.softmax[large_values]@fp16-true", {"aten::_softmax": one_rowwise}, Status.NONFINITE, "infer"),
    ("op.layer_norm@bf16-true", {"aten::native_layer_norm": without_weight}, Status.INACCURATE, "infer"),
    (
        "op.embedding[long_reduction]@bf16-true",
        {"aten::embedding_dense_backward": sticking},
        Status.INACCURATE,
        "backward",
    ),
    (
        "op.cross_entropy[ignore_index]@bf16-true",
        {"aten::nll_loss_forward": counting_padding},
        Status.INACCURATE,
        "infer",
    ),
    ("op.conv2d@bf16-true", {"aten::convolution": no_bias}, Status.INACCURATE, "infer"),
    ("op.conv2d[channels_last]@fp16-true", {"aten::convolution": channels_last_is_ignored}, Status.INACCURATE, "infer"),
    ("op.gelu[tanh_large_values]@fp16-true", {"aten::gelu": tail}, Status.NONFINITE, "infer"),
    ("op.silu[large_values]@fp16-true", {"aten::silu": no_exponential_guard}, Status.NONFINITE, "infer"),
    ("op.matmul[poisoned_row]@fp16-true", {"aten::mm": poisoning, "aten::addmm": None}, Status.NONFINITE, "infer"),
    ("op.matmul[transposed]@bf16-true", {"aten::mm": transposed_is_ignored}, Status.INACCURATE, "infer"),
    ("op.mse[long_reduction]@fp16-true", {"aten::mse_loss": squares}, Status.NONFINITE, "infer"),
]


@pytest.mark.parametrize(("text", "kernels", "status", "stage"), FAULTS, ids=[f[0] for f in FAULTS])
def test_a_wrong_kernel_is_seen(
    run_cell: RunCell, text: str, kernels: dict[str, Callable[..., object] | None], status: Status, stage: str
) -> None:
    cell = parse(text)
    case, draw = case_of(cell.probe, cell.variant)
    outcome = run_cell(case, draw, str(cell.precision), {n: k for n, k in kernels.items() if k})
    assert (outcome.status, outcome.stage) == (status, stage), outcome.reason


def test_attention_by_hand_overflows_where_a_fused_one_does_not(run_cell: RunCell) -> None:
    case, draw = case_of("op.attention", "large_values")
    assert run_cell(case, draw, "fp16-true").status in (Status.OK, Status.UNSUPPORTED)

    def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax((q @ k.mT) / 4, -1) @ v

    hand, draw = case_of("op.attention", "large_values")
    outcome = run_cell(Op(fn=by_hand, args=hand.args, backward=False), draw, "fp16-true")
    assert (outcome.status, outcome.code) == (Status.NONFINITE, "format")


def test_a_row_with_nothing_to_attend_to_must_be_finite(run_cell: RunCell) -> None:
    case, draw = case_of("op.attention", "masked_row")
    outcome = run_cell(
        Op(fn=plain_attention, args=case.args, invariants=case.invariants), Draw("naive", "masked_row"), "fp32"
    )
    assert outcome.status is Status.INACCURATE
    assert run_cell(case, draw, "fp32").status is Status.OK


def plain_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((q @ k.mT / 4).masked_fill(~mask, -torch.inf), -1) @ v


def test_layer_norm_really_gets_mixed_operands() -> None:
    case, _ = case_of("op.layer_norm", "mixed_operands")
    assert {n: a.keep for n, a in case.args.items()} == {"x": False, "weight": True, "bias": True}


def test_the_causal_probe_changes_only_the_future() -> None:
    case, _ = case_of("op.attention", "causal")
    for name in ("k", "v"):
        same = (case.args[name].value == case.args[f"other_{name}"].value).all(dim=-1).all(dim=-1).all(dim=0)
        assert same[:40].all()
        assert not same[40:].any()
