"""The ideal run: the same ATen calls as the device makes, each computed in float64 and rounded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

T = TypeVar("T")
_ROUNDED = (torch.float16, torch.bfloat16, torch.float32)
_COPIES = (
    "aten::_to_copy",
    "aten::clone",
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::_copy_from",
)
_EXACT_MUTATIONS = ("aten::copy_", "aten::zero_", "aten::fill_", "aten::masked_fill_", "aten::detach_")
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution", "aten::convolution_backward")


class Ideal(TorchDispatchMode):
    """Each non-view, non-mutating call runs on the device for its dtype; its value is recomputed on the CPU in float64.

    The value comes from the same operands and is rounded once to the dtype that the device gave, so the device's own
    autocast policy is followed. `kept` names the calls whose value had to stay the device's. `tf32` rounds the
    operands of products to 10 mantissa bits first.
    """

    def __init__(self, tf32: bool = False) -> None:
        super().__init__()
        self.tf32 = tf32
        self.kept: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._schema.name
        if (
            not any(_rounded(x) for x in _tensors(out))
            or name in _COPIES
            or torch.Tag.nondeterministic_seeded in func.tags
        ):
            return out
        if func._schema.is_mutable:
            if name not in _EXACT_MUTATIONS:
                self.kept.add(name)
            return out
        if any(r.alias_info for r in func._schema.returns):
            return out
        try:
            exact = _recompute(func, name, args, kwargs, self.tf32 and name in _PRODUCTS)
        except (RuntimeError, NotImplementedError):
            self.kept.add(name)
            return out
        return _merge(out, exact)


def run_ideal(work: Callable[[], T], tf32: bool = False) -> tuple[T, tuple[str, ...]]:
    """Do the work under Ideal; gives its result and the names of the calls that kept the device's value.

    Where a fused kernel has no float64 form on a CPU, the work is done again on the math path.
    """
    mode = Ideal(tf32)
    with mode:
        result = work()
    if not mode.kept:
        return result, ()
    mode = Ideal(tf32)
    with math_path(), mode:
        result = work()
    return result, tuple(sorted(mode.kept))


@contextmanager
def math_path() -> Iterator[None]:
    """Attention, recurrent layers and convolutions as plain ATen calls: no fused attention, cuDNN or oneDNN."""
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        yield


def _recompute(func: Any, name: str, args: Any, kwargs: Mapping[str, Any], tf32: bool) -> Any:
    def up(x: Any) -> Any:
        if isinstance(x, Tensor):
            wide = x.detach().cpu()
            if wide.dtype not in _ROUNDED:
                return wide
            return (_to_tf32(wide) if tf32 and wide.dtype is torch.float32 else wide).double()
        if isinstance(x, torch.device):
            return torch.device("cpu")
        return torch.float64 if x in _ROUNDED and isinstance(x, torch.dtype) else x

    with torch.autocast("cpu", enabled=False):
        return _FLOAT64_FORMS.get(name, func)(*tree_map(up, args), **tree_map(up, dict(kwargs)))


def _merge(out: Any, exact: Any) -> Any:
    if isinstance(out, (tuple, list)):
        return type(out)(_merge(o, e) for o, e in zip(out, exact, strict=True))
    if _rounded(out) and isinstance(exact, Tensor) and exact.dtype is torch.float64 and exact.shape == out.shape:
        return torch.empty_like(out).copy_(exact.to(out.dtype))
    return out


def _tensors(out: Any) -> list[Any]:
    return list(out) if isinstance(out, (tuple, list)) else [out]


def _rounded(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in _ROUNDED


def _to_tf32(x: Tensor) -> Tensor:
    """Rounded to 10 mantissa bits, to nearest; float32 in and out."""
    bits = x.contiguous().view(torch.int32)
    return torch.bitwise_and(bits + 0x0FFF + ((bits >> 13) & 1), ~0x1FFF).view(torch.float32)


def _linear_backward(x: Tensor, grad: Tensor, weight: Tensor, mask: list[bool]) -> tuple[Tensor | None, ...]:
    rows, grads = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    return (
        grad @ weight if mask[0] else None,
        grads.T @ rows if mask[1] else None,
        grads.sum(0) if mask[2] else None,
    )


# Kernels of one device whose name has no CPU form: what they compute, written with calls that have one.
_FLOAT64_FORMS: dict[str, Callable[..., Any]] = {
    "aten::linear_backward": _linear_backward,
    "aten::_scaled_dot_product_attention_math_for_mps": torch.ops.aten._scaled_dot_product_attention_math.default,
}
