"""Layers of transformers: `op.multi_head_attention` and `op.transformer_layer`, in training and evaluation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.probes.inputs import dense, poisoned
from amp_probe.suite import Probe

_WIDTH, _HEADS, _LENGTH, _BATCH = 16, 4, 5, 2


def multi_head_attention(draw: Draw) -> Op:
    """`nn.MultiheadAttention`, with and without weights, causal, and with padded keys.

    Would have caught masks that are merged in the wrong dtype (`padding`: float and bool), a fast path of evaluation
    that differs from training (`eval`), and gradients of the projections' biases that are summed in the low dtype
    (`long_reduction`).
    """
    layer = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True, device="cpu")
    layer.train(not draw.variant.startswith("eval"))
    weights = draw.variant == "weights"
    causal = draw.variant == "causal"

    def attend(x: Tensor, pad: Tensor | None, **parameters: Tensor) -> tuple[Tensor, ...]:
        mask = _causal(x) if causal else None
        options = {"need_weights": weights, "key_padding_mask": pad, "attn_mask": mask, "is_causal": causal}
        out, given = functional_call(layer, parameters, (x, x, x), options)
        return _valid(out, pad), *((given,) if weights else ())

    return _op(draw, layer, attend)


def transformer_layer(draw: Draw) -> Op:
    """`nn.TransformerEncoderLayer` without dropout: training, and evaluation with its fused fast path under no_grad.

    Would have caught a fast path that ignores autocast or the padding mask (`eval`, `eval_padding`), a norm that takes
    the residual stream in the low dtype (`norm_first`), and NaN of one sequence in others (`poisoned_row`).
    """
    relu = draw.variant == "eval_relu"
    layer = nn.TransformerEncoderLayer(
        _WIDTH,
        _HEADS,
        dim_feedforward=24,
        dropout=0.0,
        batch_first=True,
        norm_first=draw.variant == "norm_first",
        activation="relu" if relu else "gelu",
        device="cpu",
    )
    layer.train(not draw.variant.startswith("eval"))

    def encode(x: Tensor, pad: Tensor | None, **parameters: Tensor) -> tuple[Tensor, ...]:
        return (_valid(functional_call(layer, parameters, (x,), {"src_key_padding_mask": pad}), pad),)

    # Rounding flips relu where its input is near 0, and a gradient with it: no reference says which way is right.
    return _op(draw, layer, encode, backward=not relu)


def _op(draw: Draw, layer: nn.Module, fn: Any, backward: bool = True) -> Op:
    batch, length = {"long_reduction": (512, 4), "odd": (1, 7)}.get(draw.variant, (_BATCH, _LENGTH))
    x = draw.normal(batch, length, _WIDTH)
    args = {"x": dense(poisoned(x) if draw.variant.endswith("poisoned_row") else x)}
    for name, parameter in layer.named_parameters():
        args[name] = Arg(_parameter(draw, name, parameter), grad=True)
    if not draw.variant.endswith("padding"):
        return Op(fn=lambda x, **parameters: fn(x, None, **parameters), args=args, backward=backward)
    args["pad"] = Arg(torch.arange(length) >= torch.tensor([[length], [length - 2]]))
    return Op(fn=lambda x, pad, **parameters: fn(x, pad, **parameters), args=args, backward=backward)


def _parameter(draw: Draw, name: str, parameter: Tensor) -> Tensor:
    """Weights that neither shrink nor grow what passes, gains near 1, and biases that show when they are lost."""
    if parameter.dim() > 1:
        return draw.normal(*parameter.shape, scale=parameter.shape[-1] ** -0.5)
    gain = "norm" in name and name.endswith("weight")
    return draw.gain(*parameter.shape) if gain else draw.normal(*parameter.shape)


def _causal(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)


def _valid(out: Tensor, pad: Tensor | None) -> Tensor:
    """The output where it means something: what padded places hold differs from path to path."""
    return out if pad is None else out.masked_fill(pad[..., None], 0.0)


PROBES: tuple[Probe, ...] = (
    Probe(
        "op.multi_head_attention",
        multi_head_attention,
        ("base", "weights", "causal", "padding", "eval", "eval_padding", "odd", "long_reduction", "poisoned_row"),
    ),
    Probe(
        "op.transformer_layer",
        transformer_layer,
        ("base", "norm_first", "padding", "eval", "eval_relu", "eval_padding", "long_reduction", "poisoned_row"),
    ),
)
