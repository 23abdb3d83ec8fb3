"""Recurrent layers: `op.lstm`, `op.gru` and `op.rnn`, forward and in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from amp_probe.case import Arg, Op
from amp_probe.draw import Draw
from amp_probe.probes.inputs import dense, poisoned, transposed
from amp_probe.suite import Probe

_FEATURES, _HIDDEN = 8, 12


def lstm(draw: Draw) -> Op:
    """`nn.LSTM` over a batch of sequences: output, last state and cell, and the gradient of every weight and bias.

    Would have caught torch-xpu-ops#4066 (nn.LSTM under autocast, forward and training), one sequence's NaN in others
    (`poisoned_row`), and gradients of biases that are summed over all steps in the low dtype (`long_reduction`).
    """
    return _recurrent(draw, nn.LSTM)


def gru(draw: Draw) -> Op:
    """`nn.GRU`.

    Would have caught the faults of the LSTM in the layer that autocast treats apart: on a CPU its output is float32.
    """
    return _recurrent(draw, nn.GRU)


def rnn(draw: Draw) -> Op:
    """`nn.RNN` with tanh, and with relu (`relu`).

    Would have caught the faults of the LSTM in the cell that oneDNN and MIOpen leave to others.
    """
    return _recurrent(draw, nn.RNN, nonlinearity="relu" if draw.variant == "relu" else "tanh")


def _recurrent(draw: Draw, kind: Callable[..., nn.Module], **options: Any) -> Op:
    """The layer as a function of its input and parameters, whose values are on the grid."""
    options |= {"bidirectional": draw.variant == "bidirectional", "num_layers": 2 if draw.variant == "stacked" else 1}
    batch_first = draw.variant == "strided"
    layer = kind(_FEATURES, _HIDDEN, batch_first=batch_first, **options)
    length, batch = {"long_reduction": (4, 512), "odd": (5, 1), "long": (24, 2)}.get(draw.variant, (6, 4))
    x = draw.normal(length, batch, _FEATURES)
    if draw.variant == "poisoned_row":
        x = poisoned(x.transpose(0, 1)).transpose(0, 1).contiguous()
    args = {"x": transposed(draw.normal(batch, length, _FEATURES)) if batch_first else dense(x)}
    args |= {n: Arg(draw.normal(*p.shape, scale=0.25), grad=True) for n, p in layer.named_parameters()}
    return Op(fn=lambda x, **parameters: _flat(functional_call(layer, parameters, (x,))), args=args)


def _flat(found: tuple[Tensor, Any]) -> tuple[Tensor, ...]:
    """Output and last state; of an LSTM the last cell too."""
    output, state = found
    return (output, state) if isinstance(state, torch.Tensor) else (output, *state)


_VARIANTS = ("base", "strided", "odd", "long", "stacked", "bidirectional", "long_reduction", "poisoned_row")

PROBES: tuple[Probe, ...] = (
    Probe("op.lstm", lstm, _VARIANTS),
    Probe("op.gru", gru, ("base", "bidirectional", "long_reduction", "poisoned_row")),
    Probe("op.rnn", rnn, ("base", "relu", "bidirectional", "long_reduction", "poisoned_row")),
)
