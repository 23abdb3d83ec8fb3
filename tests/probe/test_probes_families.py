from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from amp_matrix.cell_id import parse
from amp_matrix.survey import Outcome, Status, cell_id
from amp_probe.case import Case, Op, Script
from amp_probe.draw import Draw
from amp_probe.harness.classify import classify
from amp_probe.harness.op import reference
from amp_probe.ideal import run_ideal
from amp_probe.probes import (
    activation,
    attention,
    attention_forms,
    batch_norm,
    conv,
    distance,
    dropout,
    embedding,
    indexing,
    inputs,
    linalg,
    loss,
    losses,
    matmul,
    norm,
    ordering,
    pointwise,
    pooling,
    product,
    reduction,
    repeat,
    resize,
    rnn,
    selection,
    spectral,
    transformer,
)

RunCase = Callable[..., Outcome]
FAMILIES: tuple[ModuleType, ...] = (
    attention_forms,
    batch_norm,
    conv,
    distance,
    dropout,
    indexing,
    linalg,
    losses,
    ordering,
    pointwise,
    pooling,
    product,
    reduction,
    repeat,
    resize,
    rnn,
    selection,
    spectral,
    transformer,
)
OLDER = (activation, attention, embedding, loss, matmul, norm)
PROBES = [p for family in FAMILIES for p in family.PROBES]
CELLS = {(p.name, v): p for p in PROBES for v in p.variants if p.suite != "full"}
OPS = [cell for cell, p in CELLS.items() if isinstance(p.make(Draw(*cell)), Op)]
LOW = ("bf16-mixed", "fp16-mixed", "bf16-true", "fp16-true")
aten = torch.ops.aten


def case_of(name: str, variant: str = "base") -> tuple[Case, Draw]:
    draw = Draw(name, variant)
    return CELLS[name, variant].make(draw), draw


def op_of(name: str, variant: str = "base") -> tuple[Op, Draw]:
    case, draw = case_of(name, variant)
    assert isinstance(case, Op)
    return case, draw


@pytest.fixture(autouse=True)
def _advice() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch says that a kernel is slow, or why one was not used
        yield


# --- declarations


def test_no_cell_is_declared_twice_and_every_id_can_be_typed() -> None:
    every = [*PROBES, *(p for family in OLDER for p in family.PROBES)]
    ids = [cell_id(p.name, v, c) for p in every for v in p.variants for c in p.precisions]
    assert len(ids) == len(set(ids))
    assert all(str(parse(text)) == text for text in ids)


def test_every_probe_says_what_it_would_have_caught() -> None:
    assert [p.name for p in PROBES if "Would have caught" not in (p.make.__doc__ or "")] == []


def test_every_probe_has_a_variant_beyond_base() -> None:
    variants: dict[str, set[str]] = {}
    for name, variant in CELLS:
        variants.setdefault(name, set()).add(variant)
    assert [n for n, v in variants.items() if not v - {"base"}] == ["op.eigh"]


@pytest.mark.parametrize(("name", "variant"), OPS, ids=str)
def test_inputs_are_exact_in_both_low_dtypes_unless_they_must_not_be(name: str, variant: str) -> None:
    case, _ = op_of(name, variant)
    values = [a.value for a in case.args.values() if a.value.is_floating_point()]
    exact = all(
        torch.equal(v.to(d).double().nan_to_num(7.0), v.nan_to_num(7.0))
        for v in values
        for d in (torch.float16, torch.bfloat16)
        if not v.isinf().any()
    )
    assert exact == (variant != "full_mantissa")
    assert all(bool(v.any()) for v in values)


@pytest.mark.parametrize(("name", "variant"), OPS, ids=str)
def test_every_gradient_of_the_reference_is_there_and_not_zero(name: str, variant: str) -> None:
    case, draw = op_of(name, variant)
    right = reference(case, draw)
    assert any(a.grad for a in case.args.values())
    if case.backward:
        assert set(right.gradients) == {n for n, a in case.args.items() if a.grad}
        assert all(bool(g.any()) for g in right.gradients.values())


@pytest.mark.parametrize(("name", "variant"), [c for c in OPS if c[1].endswith("poisoned_row")], ids=str)
def test_a_poisoned_row_leaves_most_of_the_outputs_to_judge(name: str, variant: str) -> None:
    case, draw = op_of(name, variant)
    outputs = reference(case, draw).outputs
    finite = [float(o.isfinite().double().mean()) for o in outputs]
    assert min(finite) < 1.0
    assert all(share >= 0.5 for share in finite)


@pytest.mark.parametrize(("name", "variant"), [c for c in OPS if "strided" in c[1] or "channels" in c[1]], ids=str)
def test_a_layout_is_not_dense(name: str, variant: str) -> None:
    case, _ = op_of(name, variant)
    views = [a.layout(a.value) for a in case.args.values() if a.layout is not None]
    assert views
    assert not any(v.is_contiguous() for v in views)
    assert all(a.strides is not None for a in case.args.values() if a.layout is not None)


# --- this CPU


@pytest.mark.parametrize(("name", "variant"), CELLS, ids=str)
def test_float32_is_sound_here(run_case: RunCase, name: str, variant: str) -> None:
    case, draw = case_of(name, variant)
    outcome = run_case(case, draw, "fp32")
    refused = outcome.code == "no_kernel" and variant in ("efficient", "cudnn", "overrideable")
    assert outcome.status is (Status.UNSUPPORTED if refused else Status.OK), outcome.reason
    assert outcome.notes == ()


@pytest.mark.parametrize("precision", LOW)
@pytest.mark.parametrize("name", sorted({n for n, v in CELLS if v == "base"} - {"op.lstm"}))
def test_base_cells_raise_no_false_alarm_here(run_case: RunCase, name: str, precision: str) -> None:
    case, draw = case_of(name)
    outcome = run_case(case, draw, precision)
    assert outcome.status in (Status.OK, Status.UNSUPPORTED), outcome.reason
    assert outcome.notes == ()


# What torch does on every CPU: the cell, the status, the stage, and part of the reason.
KNOWN = [
    ("op.index_put[long_reduction]@bf16-true", Status.INACCURATE, "infer", "eps off"),
    ("op.index_put[in_place_long_reduction]@bf16-true", Status.INACCURATE, "infer", "eps off"),
    ("op.index_add[long_reduction]@bf16-true", Status.INACCURATE, "infer", "eps off"),
    ("op.put[long_reduction]@bf16-true", Status.INACCURATE, "infer", "eps off"),
    ("op.index[long_reduction]@bf16-true", Status.INACCURATE, "backward", "grad x"),
    ("op.take[long_reduction]@bf16-true", Status.INACCURATE, "backward", "grad x"),
    ("op.embedding_bag[long_reduction]@bf16-true", Status.INACCURATE, "backward", "grad table"),
    ("op.index_put[mixed_operands]@bf16-mixed", Status.ERROR, "infer", "dtypes match"),
    ("op.index_put[mixed_operands]@fp16-mixed", Status.ERROR, "infer", "dtypes match"),
    ("op.bce[saturated]@bf16-mixed", Status.INACCURATE, "forward", "is 100, not 12"),
    ("op.bce[saturated]@fp16-mixed", Status.INACCURATE, "forward", "is 100, not 12"),
    ("op.interpolate[antialias]@fp16-true", Status.UNSUPPORTED, "infer", "not implemented for"),
    ("op.attention_by_hand[large_values]@fp16-mixed", Status.NONFINITE, "infer", "(format)"),
    ("op.attention_by_hand[mask_value]@fp16-mixed", Status.ERROR, "infer", "overflow"),
]


@pytest.mark.parametrize(("text", "status", "stage", "words"), KNOWN, ids=[k[0] for k in KNOWN])
def test_what_is_known_of_torch_is_seen(run_case: RunCase, text: str, status: Status, stage: str, words: str) -> None:
    cell = parse(text)
    case, draw = case_of(cell.probe, cell.variant)
    outcome = run_case(case, draw, str(cell.precision))
    assert (outcome.status, outcome.stage) == (status, stage), outcome.reason
    assert words in outcome.reason


def test_mixed_operands_really_meet(run_case: RunCase) -> None:
    """A sum of a float32 and a low tensor that the device must promote: seen as low only under autocast."""
    x, one = torch.randn(4, 4), torch.eye(4)
    with torch.autocast("cpu", torch.bfloat16):
        assert inputs.low(x, one).dtype is torch.bfloat16
    assert inputs.low(x, one).dtype is torch.float32


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("op.transformer_layer", "aten::_transformer_encoder_layer_fwd"),
        ("op.multi_head_attention", "aten::_native_multi_head_attention"),
    ],
)
@pytest.mark.parametrize("variant", ["eval", "eval_padding"])
def test_evaluation_takes_the_fast_path(name: str, call: str, variant: str) -> None:
    case, _ = op_of(name, variant)
    values = {n: a.value.float() if a.value.is_floating_point() else a.value for n, a in case.args.items()}
    with torch.no_grad(), Calls() as calls:
        case.fn(**values)
    assert call in calls.names


class Calls(TorchDispatchMode):
    """Notes the names of the ATen calls."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func._schema.name)
        return func(*args, **(kwargs or {}))


# --- faults that each family must see: a wrong kernel, the cell that shows it, and the stage


def shallow(x: Tensor, y: Tensor) -> Tensor:
    return aten.bmm(x[..., :32_000], y[:, :32_000])  # type: ignore[no-any-return]


def no_bias(bias: Tensor, x: Tensor, y: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    return alpha * aten.mm(x, y)  # type: ignore[no-any-return]


def standing_still(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor, training: bool, *rest: Any) -> Any:
    return aten.native_batch_norm(x, w, b, mean.clone(), var.clone(), training, *rest)


def first_group(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Any:
    return aten.native_group_norm(x, weight[:1].expand_as(weight).contiguous(), bias, *rest)


def exponentials(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    return x.exp().sum(dim, keepdim).log()


def squares(x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    return (x * x).sum(dim, keepdim).sqrt()


def running(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """A running sum in the low dtype."""
    parts, carried = [], torch.zeros_like(x[:, 0])
    for column in x.unbind(1):
        carried = carried + column
        parts.append(carried)
    return torch.stack(parts, 1)


def one_less(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    values, indices = aten.sort(x, dim, descending)
    return values, (indices - 1).clamp(min=0)


def a_little_more(*args: Any, **kwargs: Any) -> Any:
    out = aten._fft_r2c(*args, **kwargs)
    return out * 1.0001


def without_mask(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
    kwargs.pop("attn_mask", None)
    return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, *args, **kwargs)


def not_smoothed(x: Tensor, size: Any, *rest: Any) -> Any:
    return aten.upsample_bilinear2d(x, size, *rest)


def half_a_layer(*args: Any, **kwargs: Any) -> Any:
    return 0.95 * aten._transformer_encoder_layer_fwd(*args, **kwargs)


def leaking(x: Tensor, *rest: Any) -> Tensor:
    out = aten.convolution(x, *rest)
    return out + 0 * out[:1]  # type: ignore[no-any-return]


def one_mask(x: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    return x.copy_((torch.arange(x.numel()).view(x.shape) % 4 < 3).to(x.dtype))


def too_rare(x: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    return aten.bernoulli_(x, p + 0.03, generator=generator)  # type: ignore[no-any-return]


def too_little(x: Tensor, other: float) -> Tensor:
    return x.div_(other * 1.02)


def swallowing(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """A masked fill by arithmetic: 0 * NaN is NaN."""
    kept = (~mask).to(x.dtype)
    return x * kept + float(value) * (1 - kept)


def by_differences(x: Tensor, dim: Any = None, *, correction: float = 1, keepdim: bool = False) -> Tensor:
    count = x.shape[-1]
    return ((x * x).mean(dim, keepdim) - x.mean(dim, keepdim) ** 2) * count / (count - correction)


def far_logistic(x: Tensor) -> Tensor:
    return x.exp() / (1 + x.exp())


def read_as_dense(x: Tensor, dim: Any, keepdim: bool = False, dtype: Any = None) -> Tensor:
    return aten.sum(x.as_strided(x.shape, (x.shape[1], 1)), dim, keepdim)  # type: ignore[no-any-return]


def from_first(x: Tensor, dim: int, index: Tensor, source: Tensor, **rest: Any) -> Tensor:
    """Repeats are dropped: the last one wins."""
    return aten.index_copy(x, dim, index, aten.index_select(x, dim, index) + 2 * source)  # type: ignore[no-any-return]


FAULTS: list[tuple[str, dict[str, Callable[..., Any]], Status, str]] = [
    ("op.bmm[large]@fp16-true", {"aten::bmm": shallow}, Status.INACCURATE, "infer"),
    ("op.addmm@bf16-true", {"aten::addmm": no_bias}, Status.INACCURATE, "infer"),
    ("op.conv1d[poisoned_row]@fp16-true", {"aten::convolution": leaking}, Status.NONFINITE, "infer"),
    ("op.batch_norm@bf16-mixed", {"aten::native_batch_norm": standing_still}, Status.INACCURATE, "infer"),
    ("op.group_norm@bf16-true", {"aten::native_group_norm": first_group}, Status.INACCURATE, "infer"),
    ("op.sigmoid[large_values]@fp16-true", {"aten::sigmoid": far_logistic}, Status.NONFINITE, "infer"),
    ("op.logsumexp[large_values]@fp16-true", {"aten::logsumexp": exponentials}, Status.NONFINITE, "infer"),
    ("op.logsumexp[huge_values]@fp32", {"aten::logsumexp": exponentials}, Status.NONFINITE, "infer"),
    ("op.norm[large_values]@fp16-true", {"aten::linalg_vector_norm": squares}, Status.NONFINITE, "infer"),
    ("op.normalize[small_values]@fp16-true", {"aten::linalg_vector_norm": squares}, Status.INACCURATE, "infer"),
    ("op.var[offset]@fp32", {"aten::var": by_differences}, Status.INACCURATE, "infer"),
    ("op.cumsum[long_reduction]@bf16-true", {"aten::cumsum": running}, Status.INACCURATE, "infer"),
    ("op.sum[strided]@bf16-true", {"aten::sum": read_as_dense}, Status.INACCURATE, "infer"),
    ("op.index_add[repeated]@bf16-true", {"aten::index_add": from_first}, Status.INACCURATE, "infer"),
    ("op.masked_fill[over_nan]@fp32", {"aten::masked_fill": swallowing}, Status.NONFINITE, "infer"),
    ("op.sort@bf16-true", {"aten::sort": one_less}, Status.INACCURATE, "infer"),
    ("op.fft@fp32", {"aten::_fft_r2c": a_little_more}, Status.INACCURATE, "infer"),
    (
        "op.attention[bool_mask]@fp32",
        {"aten::_scaled_dot_product_flash_attention_for_cpu": without_mask},
        Status.INACCURATE,
        "infer",
    ),
    ("op.interpolate[antialias]@fp32", {"aten::_upsample_bilinear2d_aa": not_smoothed}, Status.INACCURATE, "infer"),
    (
        "op.transformer_layer[eval]@bf16-true",
        {"aten::_transformer_encoder_layer_fwd": half_a_layer},
        Status.INACCURATE,
        "infer",
    ),
    ("op.dropout@bf16-mixed", {"aten::bernoulli_": one_mask}, Status.INACCURATE, "infer"),
    ("op.dropout@fp32", {"aten::bernoulli_": too_rare}, Status.INACCURATE, "infer"),
    ("op.dropout@fp16-true", {"aten::div_": too_little}, Status.INACCURATE, "infer"),
    (
        "op.gelu[repeat]@fp32",
        {"aten::gelu": lambda x, **rest: aten.gelu(x) + torch.rand(())},
        Status.INACCURATE,
        "second",
    ),
]


@pytest.mark.parametrize(("text", "kernels", "status", "stage"), FAULTS, ids=[f[0] for f in FAULTS])
def test_a_wrong_kernel_is_seen(
    run_case: RunCase, text: str, kernels: dict[str, Callable[..., Any]], status: Status, stage: str
) -> None:
    cell = parse(text)
    case, draw = case_of(cell.probe, cell.variant)
    outcome = run_case(case, draw, str(cell.precision), kernels)
    assert (outcome.status, outcome.stage) == (status, stage), outcome.reason
    case, draw = case_of(cell.probe, cell.variant)
    assert run_case(case, draw, str(cell.precision)).status in (Status.OK, Status.UNSUPPORTED)


def test_dropout_that_ignores_its_seed_or_forgets_its_mask_is_seen(run_case: RunCase) -> None:
    case, draw = case_of("op.dropout")
    fresh = torch.Generator()
    outcome = run_case(
        case, draw, "fp32", {"aten::bernoulli_": lambda x, p, generator=None: aten.bernoulli_(x, p, generator=fresh)}
    )
    assert "seed" in outcome.reason or "seed" in outcome.code
    case, draw = case_of("op.dropout")

    def other_mask_in_backward(x: Tensor, y: Tensor) -> Tensor:
        signed = x.is_floating_point() and bool((x < 0).any())  # a cotangent, never the input
        return aten.mul(x, y.roll(1, 0) if signed else y)  # type: ignore[no-any-return]

    outcome = run_case(case, draw, "fp32", {"aten::mul": other_mask_in_backward})
    assert (outcome.status, outcome.stage) == (Status.INACCURATE, "backward")


def test_a_fresh_process_gives_the_same_and_a_difference_is_seen(run_case: RunCase) -> None:
    probe = next(p for p in repeat.PROBES if p.name == "op.matmul" and p.variants == ("fresh",))
    case = probe.make(Draw("op.matmul", "fresh"))
    assert isinstance(case, Script)
    assert run_case(case, Draw("op.matmul", "fresh"), "bf16-mixed").status is Status.OK
    outcome = run_case(case, Draw("op.matmul", "fresh"), "fp32", {"aten::mm": lambda x, y: aten.mm(x, y) * 1.001})
    assert (outcome.status, outcome.stage) == (Status.INACCURATE, "fresh")


# --- what these probes needed of the harness


@pytest.mark.parametrize(
    "text",
    [
        "MKL FFT doesn't support tensors of type: Half",
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.",
    ],
)
def test_these_words_are_a_refusal(text: str) -> None:
    assert classify(RuntimeError(text)).status is Status.UNSUPPORTED


def test_a_complex_value_is_never_judged_against_itself() -> None:
    x = torch.randn(4, 16)
    _, kept = run_ideal(lambda: torch.view_as_real(torch.fft.rfft(x)))
    assert kept == ("aten::_fft_r2c",)
