"""Attention: `op.attention`, which is `F.scaled_dot_product_attention` with whatever kernel the device picks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.suite import Probe

_BATCH, _HEADS, _LENGTH, _WIDTH = 2, 3, 64, 16
_PAST = 40


def attention(draw: Draw) -> Op:
    """`F.scaled_dot_product_attention(q, k, v)` at length 64, where CPU kernels change.

    Would have caught pytorch#195910 (`causal`: future keys and values move the past on mps in fp16 and bf16),
    pytorch#119131 (`large_values`: logits overflow fp16), logits rounded to the low dtype (`sharp`), pytorch#103963
    (`masked_row`: a row with nothing to attend to), and bf16 attention that raises from length 64 on
    (ATEN_CPU_CAPABILITY=default).
    """
    length = 1 if draw.variant == "q1" else _LENGTH
    keys = {"large_values": _signs, "sharp": _sharp}.get(draw.variant, _normal)
    args = {"q": _heads(keys(draw, length)), "k": _heads(keys(draw, _LENGTH)), "v": _heads(_normal(draw, _LENGTH))}
    if draw.variant == "causal":
        return Op(fn=_causal, args=args | _other_future(draw, args), invariants=(_past_unmoved,))
    if draw.variant == "masked_row":
        return Op(fn=_masked, args=args | {"mask": Arg(_mask(draw))}, invariants=(_all_finite,))
    # Logits of 57,344 leave a fused float32 backward 1e-3 of each probability: only the forward is asked for there.
    return Op(fn=_plain, args=args, backward=draw.variant != "large_values")


def _heads(values: Tensor) -> Arg:
    """Heads as models make them: a transposed view of (batch, length, heads, width)."""
    return Arg(values, grad=True, layout=lambda t: t.transpose(1, 2))


def _normal(draw: Draw, length: int) -> Tensor:
    return draw.normal(_BATCH, length, _HEADS, _WIDTH)


def _sharp(draw: Draw, length: int) -> Tensor:
    return draw.normal(_BATCH, length, _HEADS, _WIDTH, scale=4.0)


def _signs(draw: Draw, length: int) -> Tensor:
    """128 or -128: products of q and k reach 229,376, beyond fp16, and are exact in every other format.

    Scaled before the product, as they should be, they stay below 65,504.
    """
    return 256.0 * draw.integers(_BATCH, length, _HEADS, _WIDTH, high=2).double() - 128.0


def _other_future(draw: Draw, args: dict[str, Arg]) -> dict[str, Arg]:
    """The same keys and values up to a point, and others after it."""
    changed = {}
    for name in ("k", "v"):
        values = args[name].value.clone()
        values[:, _PAST:] = draw.normal(_BATCH, _LENGTH - _PAST, _HEADS, _WIDTH, scale=4.0)
        changed[f"other_{name}"] = Arg(values, layout=lambda t: t.transpose(1, 2))
    return changed


def _mask(draw: Draw) -> Tensor:
    """Who may attend to whom, (1, 1, length, length); row 7 may attend to nothing."""
    mask = draw.integers(1, 1, _LENGTH, _LENGTH, high=4) > 0
    mask[..., 7, :] = False
    return mask


def _plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _causal(q: Tensor, k: Tensor, v: Tensor, other_k: Tensor, other_v: Tensor) -> tuple[Tensor, ...]:
    first = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return first, F.scaled_dot_product_attention(q, other_k, other_v, is_causal=True)


def _masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _past_unmoved(outputs: tuple[Tensor, ...]) -> str:
    first, second = (o[:, :, :_PAST] for o in outputs)
    return "" if torch.equal(first, second) else "changing future keys and values moved past rows"


def _all_finite(outputs: tuple[Tensor, ...]) -> str:
    return "" if all(bool(o.isfinite().all()) for o in outputs) else "a fully masked row gave NaN or Inf"


PROBES: tuple[Probe, ...] = (
    Probe("op.attention", attention, ("base", "causal", "q1", "sharp", "large_values", "masked_row")),
)
