"""Autocast's policy, operator by operator: what dtype comes out for which dtypes that go in."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_probe.scrub import scrub

REFUSED = "refused"
"""Stands for a dtype where an operator raised."""
INPUTS = ("float32", "low", "both")
"""What goes in: float32 (what does autocast cast down), low (what does it cast up), the first low and the rest float32
(what does it promote)."""
_SHOWN = 120


class Operator(NamedTuple):
    """A raw functional of tensors, and their shapes.

    `strict`: its kernel, and not what fake tensors ask, refuses operands of different dtypes.
    """

    fn: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...] = ((4, 8),)
    strict: bool = False


class Seen(NamedTuple):
    """The dtypes that came out, by operator (REFUSED where it raised), and what those that raised said."""

    dtypes: dict[str, str]
    refusals: dict[str, str]


def observe(inputs: str, device: torch.device, low: torch.dtype, fake: bool = False) -> Seen:
    """Call every operator now, with `inputs` of INPUTS, on the device; autocast is the caller's.

    Values are all 0.5: only dtypes are looked at. `fake` leaves out what fake tensors would answer wrongly.
    """
    seen = Seen({}, {})
    for name, operator in OPERATORS.items():
        if inputs == "both" and (len(operator.shapes) == 1 or (fake and operator.strict)):
            continue
        try:
            seen.dtypes[name] = _output(operator, inputs, device, low)
        except Exception as error:  # noqa: BLE001 -- whatever an operator raises, the others are still asked
            seen.dtypes[name] = REFUSED
            seen.refusals[name] = f"{type(error).__name__}: {scrub(str(error))[:_SHOWN]}"
    return seen


def _output(operator: Operator, inputs: str, device: torch.device, low: torch.dtype) -> str:
    first, rest = {"float32": (torch.float32,) * 2, "low": (low, low), "both": (low, torch.float32)}[inputs]
    tensors = [
        torch.full(shape, 0.5, device=device, dtype=rest if i else first) for i, shape in enumerate(operator.shapes)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on slow paths, and on norms with mixed operands
        return str(operator.fn(*tensors).dtype).removeprefix("torch.")


def _classes(scores: Tensor) -> Tensor:
    return torch.zeros(scores.shape[0], dtype=torch.int64, device=scores.device)


_TWO = ((4, 8), (4, 8))
_MATRICES = ((4, 8), (8, 4))
_IMAGE, _KERNEL = (1, 2, 8, 8), (4, 2, 3, 3)
_HEADS = ((1, 2, 4, 8),) * 3

OPERATORS: dict[str, Operator] = {
    "mm": Operator(torch.mm, _MATRICES),
    "matmul": Operator(torch.matmul, _MATRICES),
    "bmm": Operator(torch.bmm, ((2, 4, 8), (2, 8, 4))),
    "mv": Operator(torch.mv, ((4, 8), (8,)), strict=True),
    "dot": Operator(torch.dot, ((8,), (8,))),
    "addmm": Operator(torch.addmm, ((4, 4), *_MATRICES)),
    "baddbmm": Operator(torch.baddbmm, ((2, 4, 4), (2, 4, 8), (2, 8, 4))),
    "einsum": Operator(lambda a, b: torch.einsum("ij,jk->ik", a, b), _MATRICES),
    "linear": Operator(F.linear, _TWO),
    "conv1d": Operator(F.conv1d, ((1, 2, 8), (4, 2, 3))),
    "conv2d": Operator(F.conv2d, (_IMAGE, _KERNEL)),
    "conv3d": Operator(F.conv3d, ((1, 2, 4, 4, 4), (4, 2, 3, 3, 3))),
    "conv_transpose2d": Operator(F.conv_transpose2d, (_IMAGE, (2, 4, 3, 3))),
    "scaled_dot_product_attention": Operator(F.scaled_dot_product_attention, _HEADS),
    "prelu": Operator(F.prelu, ((4, 8), (8,))),
    "softmax": Operator(lambda x: F.softmax(x, dim=-1)),
    "log_softmax": Operator(lambda x: F.log_softmax(x, dim=-1)),
    "layer_norm": Operator(lambda x, w: F.layer_norm(x, (8,), w), ((4, 8), (8,))),
    "rms_norm": Operator(lambda x, w: F.rms_norm(x, (8,), w), ((4, 8), (8,))),
    "group_norm": Operator(lambda x: F.group_norm(x, 2)),
    "gelu": Operator(F.gelu),
    "silu": Operator(F.silu),
    "relu": Operator(F.relu),
    "softplus": Operator(F.softplus),
    "exp": Operator(torch.exp),
    "log": Operator(torch.log),
    "pow": Operator(lambda x: torch.pow(x, 3)),
    "rsqrt": Operator(torch.rsqrt),
    "acos": Operator(torch.acos),
    "sum": Operator(lambda x: torch.sum(x, dim=-1)),
    "prod": Operator(lambda x: torch.prod(x, dim=-1)),
    "mean": Operator(lambda x: torch.mean(x, dim=-1)),
    "cumsum": Operator(lambda x: torch.cumsum(x, dim=-1)),
    "logsumexp": Operator(lambda x: torch.logsumexp(x, dim=-1)),
    "norm": Operator(torch.norm),
    "cosine_similarity": Operator(F.cosine_similarity, _TWO),
    "cdist": Operator(torch.cdist, _TWO),
    "mse_loss": Operator(F.mse_loss, _TWO),
    "l1_loss": Operator(F.l1_loss, _TWO),
    "smooth_l1_loss": Operator(F.smooth_l1_loss, _TWO),
    "cross_entropy": Operator(lambda x: F.cross_entropy(x, _classes(x))),
    "nll_loss": Operator(lambda x: F.nll_loss(x, _classes(x))),
    "kl_div": Operator(lambda x, y: F.kl_div(x, y, reduction="sum"), _TWO),
    "binary_cross_entropy": Operator(F.binary_cross_entropy, _TWO),
    "binary_cross_entropy_with_logits": Operator(F.binary_cross_entropy_with_logits, _TWO),
    "add": Operator(torch.add, _TWO),
    "addcmul": Operator(torch.addcmul, (*_TWO, (4, 8))),
    "cat": Operator(lambda a, b: torch.cat([a, b]), _TWO),
    "stack": Operator(lambda a, b: torch.stack([a, b]), _TWO),
    "index_put": Operator(lambda a, b: a.index_put((_classes(a),), b), _TWO, strict=True),
    "interpolate": Operator(lambda x: F.interpolate(x, scale_factor=2.0), (_IMAGE,)),
}
"""What `observe` calls: no views, recurrent layers or batch norm, which end a process that fakes some devices."""
