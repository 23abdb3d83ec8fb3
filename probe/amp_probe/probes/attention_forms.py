"""More of `op.attention`: masks, grouped queries, each kernel by name; and `op.attention_by_hand`."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from amp_matrix.survey import Status
from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.harness.recorder import Fault
from amp_probe.probes.inputs import poisoned
from amp_probe.suite import Probe

_BATCH, _HEADS, _LENGTH, _WIDTH = 2, 4, 40, 16
_KERNELS = {
    "math": "MATH",
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "overrideable": "OVERRIDEABLE",
}
_NO_KERNEL = ("No available kernel", "No viable backend")
_SHAPES = {"odd": (1, 3, 37, 5), "long": (1, 2, 600, 8), "q1_long": (1, 2, 4099, 8)}


def masked(draw: Draw) -> Op:
    """Attention with a mask: booleans, or float values that are added, -inf among them.

    Would have caught masks that are read with the wrong strides (a mask is one for all heads here), a float mask whose
    low dtype or gradient is lost (`learned_mask`), and -inf that becomes NaN.
    """
    shape = (1, 1, _LENGTH, _LENGTH)
    allowed = draw.integers(*shape, high=4) > 0
    allowed[..., 0] = True
    values = draw.normal(*shape, scale=2.0)
    if draw.variant == "float_mask":
        values = values.masked_fill(~allowed, -math.inf)
    learned = draw.variant == "learned_mask"
    mask = Arg(allowed) if draw.variant == "bool_mask" else Arg(values, grad=learned)
    return Op(fn=_masked, args=_heads(draw) | {"mask": mask})


def shaped(draw: Draw) -> Op:
    """Attention at other sizes and layouts, and with a sample of NaN.

    Would have caught kernels that pad badly (`odd`), bf16 attention that raises from some length on (`long`), one
    query's sums over thousands of keys in the low dtype (`q1_long`), queries, keys and values that are views of one
    packed tensor (`packed`), and NaN that reaches other samples (`poisoned_row`).
    """
    if draw.variant == "packed":
        packed = draw.normal(_BATCH, _LENGTH, 3 * _HEADS * _WIDTH)
        return Op(fn=_packed, args={"x": Arg(packed, grad=True)})
    return Op(fn=_plain, args=_heads(draw, queries=1 if draw.variant == "q1_long" else None))


def grouped(draw: Draw) -> Op:
    """Attention whose four query heads share two heads of keys and values (`enable_gqa`).

    Would have caught heads that are paired in the wrong order, and gradients of shared heads that are not added up.
    """
    args = _heads(draw)
    for name in ("k", "v"):
        args[name] = _view(draw.normal(_BATCH, _LENGTH, _HEADS // 2, _WIDTH))
    return Op(fn=_grouped_causal if draw.variant == "grouped_causal" else _grouped, args=args)


def by_kernel(draw: Draw) -> Op:
    """Attention by one kernel: math, flash, efficient, cudnn, or what an extension put in their place.

    Would have caught a kernel that is wrong while another is picked today. `unsupported` where the device has none.
    """
    backend = getattr(SDPBackend, _KERNELS[draw.variant], None)
    return Op(fn=lambda q, k, v: _with(backend, q, k, v), args=_heads(draw))


def by_hand(draw: Draw) -> Op:
    """`softmax(q @ k.T / sqrt(d) + mask) @ v`, as models write it.

    Would have caught pytorch#119131 (`large_values`: logits overflow fp16 from an amplitude of 64 on, where the fused
    form does not), and -1e9 as a mask, which half cannot hold (`mask_value`; `finfo_mask` is the way out).
    """
    if draw.variant == "large_values":
        values = {n: 256.0 * draw.integers(_BATCH, _LENGTH, _HEADS, _WIDTH, high=2).double() - 128.0 for n in "qk"}
        args = {n: _view(v) for n, v in values.items()} | {"v": _view(draw.normal(_BATCH, _LENGTH, _HEADS, _WIDTH))}
        return Op(fn=_by_hand, args=args, backward=False)  # saturated probabilities leave no gradient to judge
    fills: dict[str, Callable[[Tensor], float]] = {
        "causal": lambda scores: -math.inf,
        "mask_value": lambda scores: -1e9,
        "finfo_mask": lambda scores: torch.finfo(scores.dtype).min,
    }
    fill = fills.get(draw.variant)
    return Op(fn=lambda q, k, v: _by_hand(q, k, v, fill), args=_heads(draw))


def _heads(draw: Draw, queries: int | None = None) -> dict[str, Arg]:
    """q, k and v as models make them: transposed views of (batch, length, heads, width)."""
    batch, heads, length, width = _SHAPES.get(draw.variant, (_BATCH, _HEADS, _LENGTH, _WIDTH))
    values = {n: draw.normal(batch, length, heads, width) for n in "kv"}
    values["q"] = draw.normal(batch, queries or length, heads, width)
    if draw.variant == "poisoned_row":
        values = {n: poisoned(v) for n, v in values.items()}
    return {n: _view(values[n]) for n in "qkv"}


def _view(values: Tensor) -> Arg:
    return Arg(values, grad=True, layout=lambda t: t.transpose(1, 2))


def _plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _packed(x: Tensor) -> Tensor:
    q, k, v = x.view(*x.shape[:2], 3, _HEADS, _WIDTH).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def _grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def _grouped_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def _with(backend: SDPBackend | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if q.dtype is torch.float64:
        return F.scaled_dot_product_attention(q, k, v)  # the reference takes the path that it is made on
    if backend is None:
        raise Fault(Status.UNSUPPORTED, "this torch does not know the kernel", "no_kernel")
    try:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v)
    except RuntimeError as error:
        if not str(error).startswith(_NO_KERNEL):
            raise
        raise Fault(Status.UNSUPPORTED, f"{q.device.type} has no such kernel for these inputs", "no_kernel") from None


def _by_hand(q: Tensor, k: Tensor, v: Tensor, fill: Callable[[Tensor], float] | None = None) -> Tensor:
    scores = q @ k.mT / math.sqrt(_WIDTH)
    if fill is not None:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, fill(scores))
    return torch.softmax(scores, -1) @ v


PROBES: tuple[Probe, ...] = (
    Probe("op.attention", masked, ("bool_mask", "float_mask", "learned_mask")),
    Probe("op.attention", shaped, ("odd", "long", "q1_long", "packed", "poisoned_row")),
    Probe("op.attention", grouped, ("grouped", "grouped_causal")),
    Probe("op.attention", by_kernel, tuple(_KERNELS)),
    Probe(
        "op.attention_by_hand", by_hand, ("base", "causal", "mask_value", "finfo_mask", "large_values", "poisoned_row")
    ),
)
