from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from amp_probe import fused
from amp_probe.draw import Draw
from amp_probe.ideal import math_path, run_ideal
from amp_probe.numerics import measure


def values(*shape: int, salt: int = 0) -> Tensor:
    return Draw("ideal.test", salt=salt).normal(*shape)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "call",
    [
        lambda x: x @ x.mT,
        lambda x: torch.softmax(x, -1),
        lambda x: F.layer_norm(x, x.shape[-1:]),
        lambda x: F.gelu(x),
        lambda x: x.sum(0),
        lambda x: F.conv1d(x[None], x[:, :, None]),
    ],
    ids=["matmul", "softmax", "layer_norm", "gelu", "sum", "conv1d"],
)
def test_one_call_is_float64_rounded_once(call: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    x = values(16, 16)
    result, kept = run_ideal(lambda: call(x.to(dtype)))
    assert kept == ()
    assert result.dtype is dtype
    assert torch.equal(result, call(x).to(dtype))


def test_every_call_of_a_chain_is_rounded() -> None:
    x = values(16, 16)
    result, _ = run_ideal(lambda: torch.relu(x.bfloat16() @ x.bfloat16()) @ x.bfloat16())
    first = torch.relu(x @ x).bfloat16().double()
    assert torch.equal(result, (first @ x).bfloat16())
    assert not torch.equal(result, (torch.relu(x @ x) @ x).bfloat16())


def test_it_follows_autocast() -> None:
    x = values(16, 16).float()

    def work() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x

    result, _ = run_ideal(work)
    assert result.dtype is torch.bfloat16
    assert torch.equal(result, (x.double() @ x.double()).bfloat16())


def test_it_works_in_backward() -> None:
    x, cotangent = values(40, 16).bfloat16().requires_grad_(), values(40, 8, salt=1)
    weight = values(8, 16, salt=2)
    found, kept = run_ideal(
        lambda: torch.autograd.grad(F.linear(x, weight.bfloat16()), x, cotangent.bfloat16())  # type: ignore[no-any-return]
    )
    assert kept == ()
    assert torch.equal(found[0], (cotangent @ weight).bfloat16())


def test_views_keep_their_layout_and_alias() -> None:
    x = values(6, 4).bfloat16()
    result, kept = run_ideal(lambda: x.T)
    assert kept == ()
    assert result.stride() == (1, 4)
    assert result.data_ptr() == x.data_ptr()


def test_an_in_place_call_is_computed_from_what_stood_there_before() -> None:
    x = values(8, 8).bfloat16()
    result, kept = run_ideal(lambda: x.clone().mul_(1.1).add_(x))
    assert kept == ()
    assert torch.equal(result, ((x.double() * 1.1).bfloat16().double() + x.double()).bfloat16())


def test_an_in_place_call_on_a_view_reaches_the_whole() -> None:
    x = values(8, 8).bfloat16()

    def work() -> Tensor:
        y = x.clone()
        y[2].mul_(3.0)
        return y

    result, kept = run_ideal(work)
    assert kept == ()
    assert torch.equal(result[2], (x[2].double() * 3.0).bfloat16())
    assert torch.equal(result[3:], x[3:])


def test_a_call_that_writes_elsewhere_keeps_the_devices_value_and_is_named() -> None:
    x = values(8, 8).bfloat16()
    assert run_ideal(lambda: torch.mul(x, 1.1, out=torch.empty_like(x)))[1] == ("aten::mul",)


def test_copies_and_fills_in_place_are_exact_and_not_named() -> None:
    x = values(8, 8).bfloat16()
    assert run_ideal(lambda: torch.empty_like(x).copy_(x).masked_fill_(x > 0, 0.0))[1] == ()


def test_random_draws_stay_the_devices() -> None:
    def work() -> Tensor:
        torch.manual_seed(0)
        return torch.bernoulli(torch.full((64,), 0.5, dtype=torch.bfloat16))

    result, kept = run_ideal(work)
    assert kept == ()
    assert torch.equal(result, work())


def test_a_kernel_that_may_draw_is_never_kept_in_silence() -> None:
    x = values(4, 4).bfloat16()
    assert run_ideal(lambda: F.rrelu(x, training=True))[1] != ()


def test_attention_is_not_judged_against_its_own_kernel() -> None:
    called = []

    class Wrong(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            if not func._schema.name.startswith("aten::_scaled_dot_product"):
                return out
            called.append(func)
            return (out[0] * 2.0, *out[1:])

    q = values(2, 3, 64, 16)
    with Wrong():
        result, kept = run_ideal(lambda: F.scaled_dot_product_attention(*[q.bfloat16()] * 3))
    if not called:
        pytest.skip("this device has no fused attention")
    assert kept == ()
    with math_path():
        assert measure(result.double(), F.scaled_dot_product_attention(q, q, q), 2**-7).n < 0.3


def test_a_call_without_a_float64_form_is_named() -> None:
    library = torch.library.Library("amp_probe_test", "DEF")
    library.define("low_only(Tensor x) -> Tensor")

    def low_only(x: Tensor) -> Tensor:
        if x.dtype is torch.float64:
            raise NotImplementedError
        return x + 1

    library.impl("low_only", low_only, "CPU")
    result, kept = run_ideal(lambda: torch.ops.amp_probe_test.low_only(torch.ones(2, dtype=torch.bfloat16)))
    assert kept == ("amp_probe_test::low_only",)
    assert result.tolist() == [2.0, 2.0]


def biased_backward(grad_bias: Tensor | None) -> tuple[Tensor, tuple[str, ...]]:
    """The ideal of a fused attention's backward that also gives, or does not give, the gradient of a bias."""
    name = f"_scaled_dot_product_test_{'with' if grad_bias is not None else 'without'}_bias_backward"
    library = torch.library.Library("aten", "FRAGMENT")
    schema = "(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out)"
    library.define(f"{name}{schema} -> (Tensor, Tensor, Tensor, Tensor)")
    gone = torch.empty(0, dtype=torch.bfloat16)
    bias = gone if grad_bias is None else grad_bias
    library.impl(name, lambda g, q, k, v, o: (q * 0, k * 0, v * 0, bias), "CPU")
    x = values(2, 3, 8, 4).bfloat16()
    found, kept = run_ideal(lambda: getattr(torch.ops.aten, name)(x, x, x, x, x))
    library._destroy()
    return found, kept


def test_a_gradient_that_a_form_does_not_know_is_named() -> None:
    """Attention's form knows the gradients of query, key and value; a kernel may give a fourth, of the mask."""
    assert biased_backward(torch.ones(2, 3, 8, 8, dtype=torch.bfloat16))[1] != ()
    found, kept = biased_backward(None)
    assert kept == ()
    assert found[0].any()


def test_tf32_rounds_the_operands_of_products_to_ten_bits() -> None:
    x = torch.tensor([[1.0 + 2**-10, 1.0 + 2**-11, 1.0 + 3 * 2**-11, 1.0 + 2**-11 + 2**-20, -1.0 - 2**-12]])
    result, _ = run_ideal(lambda: x @ torch.eye(5), tf32=True)
    assert result.tolist() == [[1.0 + 2**-10, 1.0, 1.0 + 2**-9, 1.0 + 2**-10, -1.0]]
    assert torch.equal(run_ideal(lambda: x * 1.0, tf32=True)[0], x)


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_loses_one_rounding(causal: bool) -> None:
    q, k, v = (values(2, 3, 64, 16, salt=s) for s in range(3))
    result, kept = run_ideal(
        lambda: F.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), is_causal=causal)
    )
    assert kept == ()
    with math_path():
        assert measure(result.double(), F.scaled_dot_product_attention(q, k, v, is_causal=causal), 2**-7).n < 0.3


@pytest.mark.parametrize("mask", [None, "bool", "float"])
def test_the_form_of_attention_is_right_forward_and_backward(mask: str | None) -> None:
    q, k, v = (values(2, 3, 8, 4, salt=s).requires_grad_() for s in range(3))
    allowed = torch.ones(8, 8, dtype=torch.bool).tril(2)
    allowed[3] = False
    bias = {None: None, "bool": allowed, "float": torch.where(allowed, 0.5, -math.inf).double()}[mask]
    with math_path():
        expected = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=mask is None, scale=0.3)
    cotangent = values(2, 3, 8, 4, salt=9)
    gradients = torch.autograd.grad(expected, (q, k, v), cotangent)
    call = {"query": q, "key": k, "value": v, "attn_mask": bias, "is_causal": mask is None, "scale": 0.3}
    assert torch.allclose(fused.attention(call)[0], expected)
    found = fused.attention_backward(call | {"grad_out": cotangent, "out": expected})
    assert all(torch.allclose(f, g) for f, g in zip(found, gradients, strict=True))


def test_attention_with_dropout_has_no_form() -> None:
    x = values(1, 1, 4, 4)
    with pytest.raises(NotImplementedError):
        fused.attention({"query": x, "key": x, "value": x, "dropout_p": 0.1})


def test_the_form_of_linear_backward_is_right() -> None:
    x, weight, bias = (t.requires_grad_() for t in (values(2, 5, 4), values(3, 4, salt=1), values(3, salt=2)))
    cotangent = values(2, 5, 3, salt=3)
    expected = torch.autograd.grad(F.linear(x, weight, bias), (x, weight, bias), cotangent)
    call = {"self": x, "grad_output": cotangent, "weight": weight, "output_mask": [True, True, True]}
    assert all(torch.allclose(f, e) for f, e in zip(fused.linear_backward(call), expected, strict=True))
    assert fused.linear_backward(call | {"output_mask": [False, True, False]})[::2] == (None, None)


def test_the_form_of_rms_norm_backward_is_right() -> None:
    x, weight = values(2, 5, 4).requires_grad_(), values(4, salt=1).requires_grad_()
    cotangent = values(2, 5, 4, salt=3)
    expected = torch.autograd.grad(F.rms_norm(x, (4,), weight, 1e-5), (x, weight), cotangent)
    rstd = (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    call = {"grad_out": cotangent, "input": x, "normalized_shape": [4], "rstd": rstd, "weight": weight}
    assert all(torch.allclose(f, e) for f, e in zip(fused.rms_norm_backward(call), expected, strict=True))


def test_the_math_path_puts_everything_back() -> None:
    def flags() -> tuple[object, ...]:
        cuda = torch.backends.cuda
        return (
            torch.backends.mkldnn.enabled,
            torch.backends.cudnn.enabled,
            cuda.flash_sdp_enabled(),
            cuda.math_sdp_enabled(),
        )

    before = flags()
    with suppress(KeyError), math_path():
        assert not torch.backends.mkldnn.enabled
        raise KeyError
    assert flags() == before
