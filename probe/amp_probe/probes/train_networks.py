"""Training and inference of more networks: `train.` and `infer.` with `convnet`, `lstm` and `float32_islands`."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from amp_probe.case import Arg, Op, Training
from amp_probe.draw import Draw
from amp_probe.harness.problem import problem
from amp_probe.probes.models import sentences
from amp_probe.probes.networks import Convnet, Islands, Recurrent, pictures
from amp_probe.probes.train import adamw, sgd
from amp_probe.suite import Probe

_STEPS = 30


def train_convnet(draw: Draw) -> Training:
    """A convnet with batch norm, SGD with momentum: gradients, and running statistics, which are judged like them.

    Would have caught batch norm that takes its statistics in the low dtype or never updates them, a grouped convolution
    whose backward is wrong, and pytorch#119108's convolutions that abort on mps.
    """
    return Training(Convnet, pictures(draw), F.cross_entropy, sgd(0.03), _STEPS)


def train_lstm(draw: Draw) -> Training:
    """A language model with nn.LSTM, and AdamW.

    Would have caught torch-xpu-ops#4066 (no autocast trains nn.LSTM there), and its CPU form: in fp16-mixed torch 2.13
    finds no primitive for the forward pass of a training, nor in bf16-mixed with ONEDNN_MAX_CPU_ISA=AVX2.
    """
    return Training(Recurrent, sentences(draw), F.cross_entropy, adamw(0.003), _STEPS)


def train_float32_islands(draw: Draw) -> Training:
    """A transformer block with norms, softmax and residuals in float32, whose softmax feeds a low-precision product.

    Under autocast the product casts its operands; without it, in `*-true`, torch refuses operands of two dtypes, as it
    does under FSDP's MixedPrecision alone (accelerate#2033: "expected scalar type Half but found Float"): `error`.
    """
    return Training(Islands, sentences(draw), F.cross_entropy, adamw(0.003), _STEPS)


def infer_convnet(draw: Draw) -> Op:
    """The convnet's logits in evaluation, by its running statistics.

    Would have caught an evaluation that takes the batch's statistics, and running ones that are read in another dtype.
    """
    return _infer(Convnet, pictures(draw), draw)


def infer_lstm(draw: Draw) -> Op:
    """The LSTM's logits in evaluation, a path of its own in oneDNN and cuDNN. Sibling of `train.lstm`."""
    return _infer(Recurrent, sentences(draw), draw)


def infer_float32_islands(draw: Draw) -> Op:
    """The logits of the block with float32 islands. Sibling of `train.float32_islands`."""
    return _infer(Islands, sentences(draw), draw)


def _infer(model: Callable[[], nn.Module], batch: tuple[Tensor, Tensor], draw: Draw) -> Op:
    module = problem(model, F.cross_entropy, batch, draw).module.eval()
    values = {name: p.detach().double() for name, p in module.named_parameters()}
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            values[name] = draw.gain(*buffer.shape) if name.endswith("var") else draw.normal(*buffer.shape)
        else:
            values[name] = buffer
    args = {name: Arg(value) for name, value in values.items()}
    return Op(functools.partial(_call, module), {"x": Arg(batch[0])} | args, backward=False)


def _call(module: nn.Module, x: Tensor, **values: Tensor) -> Tensor:
    with torch.no_grad():
        output: Tensor = functional_call(module, values, (x,))
    return output


PROBES: tuple[Probe, ...] = (
    Probe("infer.convnet", infer_convnet),
    Probe("infer.lstm", infer_lstm),
    Probe("infer.float32_islands", infer_float32_islands),
    Probe("train.convnet", train_convnet),
    Probe("train.lstm", train_lstm),
    Probe("train.float32_islands", train_float32_islands),
)
