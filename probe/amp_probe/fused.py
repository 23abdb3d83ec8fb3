"""Float64 forms of fused kernels that have none on a CPU, or whose own would share the faults it must show.

A form gets the call's arguments by name (float64, on the CPU) and gives as many of the call's results as it knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Arguments = Mapping[str, Any]
Form = Callable[[Arguments], tuple[Tensor | None, ...]]

_ATTENTION = "aten::_scaled_dot_product_"


def form(name: str) -> Form | None:
    """The float64 form of an ATen call like `aten::linear_backward`, or None."""
    if name.startswith(_ATTENTION):
        return attention_backward if name.endswith("_backward") else attention
    return {"aten::linear_backward": linear_backward, "aten::_fused_rms_norm_backward": rms_norm_backward}.get(name)


def attention(a: Arguments) -> tuple[Tensor, ...]:
    """Every fused attention on every device: its output. NotImplementedError with dropout."""
    return (_probabilities(a) @ a["value"],)


def attention_backward(a: Arguments) -> tuple[Tensor, ...]:
    """The gradients of query, key and value.

    They are taken as fused kernels do, from the *rounded* output: sum(p * dp) is sum(grad * out). Where one key has all
    the weight the two differ, and a perfect kernel of this kind is several eps from the plain formula.
    """
    grad, out = a.get("grad_out", a.get("grad_out_")), a["out"]
    p = _probabilities(a)
    scores = p * (grad @ a["value"].mT - (grad * out).sum(-1, keepdim=True)) * _scale(a)
    return scores @ a["key"], scores.mT @ a["query"], p.mT @ grad


def linear_backward(a: Arguments) -> tuple[Tensor | None, ...]:
    """The gradients of input, weight and bias of a linear layer (mps computes them in one call)."""
    x, grad, weight = a["self"], a["grad_output"], a["weight"]
    rows, grads = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    found = (grad @ weight, grads.T @ rows, grads.sum(0))
    return tuple(g if wanted else None for g, wanted in zip(found, a["output_mask"], strict=True))


def rms_norm_backward(a: Arguments) -> tuple[Tensor | None, ...]:
    """The gradients of input and weight of rms_norm, from the rounded 1/rms that the forward kept."""
    dims = tuple(range(-len(a["normalized_shape"]), 0))
    grad, weight = a["grad_out"], a["weight"]
    unit = a["input"] * a["rstd"]
    inner = grad if weight is None else grad * weight
    of_input = a["rstd"] * (inner - unit * (inner * unit).mean(dims, keepdim=True))
    rows = tuple(range(grad.dim() + dims[0]))
    return of_input, None if weight is None else (grad * unit).sum(rows)


def _probabilities(a: Arguments) -> Tensor:
    if a.get("dropout_p"):
        raise NotImplementedError("attention with dropout has no float64 form")
    query, key = a["query"], a["key"]
    scores = query @ key.mT * _scale(a)
    mask = a.get("attn_mask", a.get("attn_bias"))
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    if a.get("is_causal"):
        past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~past, -math.inf)
    return torch.softmax(scores, -1).masked_fill(scores.amax(-1, keepdim=True) == -math.inf, 0.0)


def _scale(a: Arguments) -> float:
    scale = a.get("scale")
    return float(1 / math.sqrt(a["query"].shape[-1]) if scale is None else scale)
