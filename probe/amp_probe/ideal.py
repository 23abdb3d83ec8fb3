"""The ideal run: the same ATen calls as the device makes, each computed in float64 and rounded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from amp_probe import fused

T = TypeVar("T")
_ROUNDED = (torch.float16, torch.bfloat16, torch.float32)
_COPIES = (
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::_copy_from",
)
_DRAWS = ("aten::bernoulli", "aten::bernoulli_", "aten::native_dropout", "aten::rand", "aten::randn", "aten::rand_like")
_EXACT_MUTATIONS = {"aten::copy_", "aten::zero_", "aten::fill_", "aten::masked_fill_", "aten::detach_"}
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution", "aten::convolution_backward")


class Ideal(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Each call that is no view runs on the device for its dtype; its value is recomputed on the CPU in float64.

    The value comes from the same operands and is rounded once to the dtype that the device gave, so the device's own
    autocast policy is followed. `kept` names the calls whose value had to stay the device's. `tf32` rounds the
    operands of products to 10 mantissa bits first.
    """

    def __init__(self, tf32: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tf32 = tf32
        self.kept: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps every call and imports torch._dynamo (0.8 s) at the first

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if _in_place(func, args) and name not in _EXACT_MUTATIONS and name not in _DRAWS:
            return self._mutate(func, name, args, kwargs)
        out = func(*args, **kwargs)
        if any(_complex(x) for x in _tensors(out)) and not any(r.alias_info for r in func._schema.returns):
            self.kept.add(name)  # a complex value is not recomputed: never judge it against itself
            return out
        if not any(_rounded(x) for x in _tensors(out)) or name in _COPIES or name in _DRAWS:
            return out
        if torch.Tag.nondeterministic_seeded in func.tags and fused.form(name) is None:
            self.kept.add(name)
            return out
        if func._schema.is_mutable:
            self.kept |= {name} - _EXACT_MUTATIONS
            return out
        if any(r.alias_info for r in func._schema.returns):
            return out
        try:
            exact = _recompute(func, name, args, kwargs, self.tf32 and name in _PRODUCTS)
            if name.endswith("_backward") and _missed(out, exact):
                self.kept.add(name)  # a gradient, as of attention's bias; a forward's last results are for its backward
            return _merge(out, exact)
        except Exception:  # noqa: BLE001 -- whatever keeps float64 away, the device's value stays and is named
            self.kept.add(name)
            return out

    def _mutate(self, func: Any, name: str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """An in-place call: its value is taken from copies of the operands, before the device changes the first."""
        try:
            exact = _recompute(func, name, args, kwargs, self.tf32 and name.rstrip("_") in _PRODUCTS)
        except Exception:  # noqa: BLE001 -- as above
            self.kept.add(name)
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        args[0].copy_(exact.to(args[0].dtype))
        return out


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
    # The flags() helpers of torch.backends set TF32 and the like as well, with warnings; these two set one thing each.
    cudnn, onednn = torch._C._get_cudnn_enabled(), torch._C._get_mkldnn_enabled()
    try:
        torch._C._set_cudnn_enabled(False)
        torch._C._set_mkldnn_enabled(False)
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch._C._set_cudnn_enabled(cudnn)
        torch._C._set_mkldnn_enabled(onednn)


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

    args, kwargs, form = tree_map(up, args), tree_map(up, dict(kwargs)), fused.form(name)
    with torch.autocast("cpu", enabled=False):
        return func(*args, **kwargs) if form is None else form(_by_name(func, args, kwargs))


def _by_name(func: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {a.name: a.default_value for a in func._schema.arguments}
    return named | dict(zip(named, args, strict=False)) | dict(kwargs)


def _merge(out: Any, exact: Any) -> Any:
    """The exact values in the dtypes of the device's; a form's missing last results stay the device's."""
    if isinstance(out, (tuple, list)):
        return type(out)([*map(_merge, out, exact), *out[len(exact) :]])
    if not _rounded(out) or out.numel() == 0:
        return out
    if not isinstance(exact, Tensor) or exact.dtype is not torch.float64 or exact.shape != out.shape:
        raise RuntimeError("the float64 form gave something else")
    return torch.empty_like(out).copy_(exact.to(out.dtype))


def _missed(out: Any, exact: Any) -> bool:
    """Whether a call gave a floating tensor that its form did not, or None for."""
    pairs = zip(_tensors(out), [*_tensors(exact), *[None] * len(_tensors(out))], strict=False)
    return any(_rounded(given) and given.numel() and wide is None for given, wide in pairs)


def _in_place(func: Any, args: Any) -> bool:
    """Whether the call changes its first argument, a floating tensor, and nothing else."""
    written = [i for i, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    return written == [0] and bool(args) and _rounded(args[0]) and func._schema.name.endswith("_")


def _tensors(out: Any) -> list[Any]:
    return list(out) if isinstance(out, (tuple, list)) else [out]


def _rounded(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in _ROUNDED


def _complex(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_complex()


def _to_tf32(x: Tensor) -> Tensor:
    """Rounded to 10 mantissa bits, to nearest; float32 in and out."""
    bits = x.contiguous().view(torch.int32)
    return torch.bitwise_and(bits + 0x0FFF + ((bits >> 13) & 1), ~0x1FFF).view(torch.float32)
