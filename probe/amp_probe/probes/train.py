"""Whole models: `train.mlp`, `train.transformer`, `infer.mlp`, `infer.transformer`, `grads.finite`."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from amp_probe.case import Arg, Op, Script, Training
from amp_probe.draw import Draw
from amp_probe.harness.problem import Problem, judge_gradients, problem
from amp_probe.harness.script import Lab
from amp_probe.probes.models import MLP, Transformer, numbers, sentences, squared_error
from amp_probe.suite import Probe

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def train_mlp(draw: Draw) -> Training:
    """A regression with SGD and momentum, or AdamW (`adamw`), 40 steps.

    Would have caught a tensor that never moves while the loss falls, a halved bias gradient that Adam hides, weights
    that stay the ones cast first (Flow-Factory PR 186), and Adam's eps that is 0 in float16 (pytorch#8860).
    """
    make = adamw(0.003) if draw.variant == "adamw" else sgd(0.1)
    return Training(MLP, numbers(draw), squared_error, make)


def train_transformer(draw: Draw) -> Training:
    """Next-token prediction with AdamW, or SGD and momentum (`sgd`), 40 steps.

    Would have caught what `train.mlp` does, and attention, norms and embeddings whose backward is wrong only together
    (pytorch#190055, pytorch#195910).
    """
    make = sgd(0.03) if draw.variant == "sgd" else adamw(0.003)
    return Training(Transformer, sentences(draw), F.cross_entropy, make)


def infer_mlp(draw: Draw) -> Op:
    """The MLP's outputs, in one forward pass.

    Would have caught a wrapper that drops a bias (ao#4846) and errors that only a chain of layers makes visible.
    """
    return _infer(problem(MLP, squared_error, numbers(draw), draw))


def infer_transformer(draw: Draw) -> Op:
    """The transformer's logits, in one forward pass.

    Would have caught embeddings, norms and attention that are right alone and wrong after one another.
    """
    return _infer(problem(Transformer, F.cross_entropy, sentences(draw), draw))


def grads_finite(draw: Draw) -> Script:
    """Every parameter of a transformer gets a gradient: finite, not zero, of the parameter's dtype, and right.

    Would have caught a backward that skips a parameter in silence, or leaves gradients in the compute dtype.
    """
    posed = problem(Transformer, F.cross_entropy, sentences(draw), draw)
    return Script(functools.partial(_gradients, posed))


def sgd(lr: float) -> Make:
    """SGD with momentum, as users write it."""
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def adamw(lr: float) -> Make:
    """AdamW in its default form."""
    return lambda parameters: torch.optim.AdamW(parameters, lr=lr)


def _infer(posed: Problem) -> Op:
    args = {name: Arg(p.detach().double()) for name, p in posed.module.named_parameters()}
    return Op(fn=functools.partial(_call, posed.module), args={"x": Arg(posed.batch[0])} | args, backward=False)


def _call(module: nn.Module, x: Tensor, **parameters: Tensor) -> Tensor:
    output: Tensor = functional_call(module, parameters, (x,))
    return output


def _gradients(posed: Problem, lab: Lab) -> None:
    with lab.stage("build"):
        model = posed.on(lab)
        x, target = lab.place(posed.batch[0]), lab.place(posed.batch[1])
        parameters = dict(model.named_parameters())
        _, right = posed.exact(parameters)
    with lab.stage("forward"), lab.enter():
        loss = posed.loss(model(x), target)
    with lab.stage("backward") as draft:
        loss.backward()  # type: ignore[no-untyped-call]
        lab.synchronize()
        judge_gradients(lab, draft, model, right, posed.ideal(lab, parameters))


PROBES: tuple[Probe, ...] = (
    Probe("grads.finite", grads_finite),
    Probe("infer.mlp", infer_mlp),
    Probe("infer.transformer", infer_transformer),
    Probe("train.mlp", train_mlp, ("base", "adamw")),
    Probe("train.transformer", train_transformer, ("base", "sgd")),
)
