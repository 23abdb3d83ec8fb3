"""Losses beside cross_entropy and mse, and similarities: each the mean over a batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from amp_matrix.survey import Status
from amp_probe.case import Arg, Op, Script
from amp_probe.draw import Draw
from amp_probe.harness.script import Lab
from amp_probe.probes.inputs import AUTOCAST, dense, low, poisoned, unit
from amp_probe.suite import Probe

_SATURATED = ((12.0, 0.0), (-12.0, 1.0), (18.0, 1.0), (-18.0, 0.0), (-18.0, 1.0))
"""Logits with their targets: losses of 12, 12, 0, 0 and 18, which probabilities in a low dtype make 100."""
_WITHIN = 0.05
_VOCABULARIES = {"smoothing_long_reduction": (32, 4096), "weighted_long_reduction": (4096, 12)}
_NLL = {"image": (2, 6, 3, 4), "image_long_reduction": (2, 6, 48, 48), "long_reduction": (4096, 12)}


def label_smoothing(draw: Draw) -> Op:
    """`F.cross_entropy` with label smoothing, with probabilities as targets, and with weights of classes.

    Would have caught a smoothing term that adds up the logarithms of a whole vocabulary in the low dtype
    (`smoothing_long_reduction`), and weights of thousands of tokens that are added up there, so that the mean is one of
    too few (`weighted_long_reduction`).
    """
    tokens, words = _VOCABULARIES.get(draw.variant, (16, 40))
    args = {"logits": dense(draw.normal(tokens, words, scale=2.0))}
    if draw.variant == "soft_targets":
        args["target"] = Arg(draw.uniform(tokens, words, high=0.0625))
        return Op(fn=lambda logits, target: F.cross_entropy(logits, target), args=args)
    args |= {"target": Arg(draw.integers(tokens, high=words)), "weight": Arg(draw.gain(words))}
    smooth = 0.0 if draw.variant.startswith("weighted") else 0.25
    return Op(fn=lambda **a: F.cross_entropy(a["logits"], a["target"], a["weight"], label_smoothing=smooth), args=args)


def nll(draw: Draw) -> Op:
    """`F.nll_loss(F.log_softmax(x), target)`, the mean over tokens or over the pixels of images (`image`).

    Would have caught a sum over tokens or pixels that leaves fp16 or sticks before it is divided (`long_reduction`,
    `image_long_reduction`).
    """
    shape = _NLL.get(draw.variant, (48, 40))
    args = {
        "x": dense(draw.normal(*shape, scale=2.0)),
        "target": Arg(draw.integers(shape[0], *shape[2:], high=shape[1])),
    }
    return Op(fn=lambda x, target: F.nll_loss(F.log_softmax(x, 1), target), args=args)


def bce(draw: Draw) -> Op:
    """`F.binary_cross_entropy(p, target)` of probabilities away from 0 and 1.

    Would have caught a logarithm of 1 - p with a 1 - p that is rounded twice. Where probabilities saturate is
    `saturated`'s question.
    """
    shape = _shape(draw)
    args = {"p": dense(draw.uniform(*shape, low=0.0625, high=0.9375)), "target": Arg(draw.uniform(*shape))}
    return Op(fn=lambda p, target: F.binary_cross_entropy(p, target), args=args)


def saturated(draw: Draw) -> Script:
    """A loss of probabilities that come from large logits: right to 5% only if sigmoid and logarithm are not low.

    Would have caught pytorch#61098: BCELoss under autocast is refused on cuda and accepted on a CPU, where a saturated
    probability gives a loss of 100 in place of 12. What the format itself does to the loss is this probe's question,
    so nothing is excused by an ideal run.
    """
    losses = {"op.bce": _of_probabilities, "op.bce_with_logits": _of_logits, "op.nll": _of_logarithms}
    return Script(run=lambda lab: _run_saturated(lab, losses[draw.probe]))


def bce_with_logits(draw: Draw) -> Op:
    """`F.binary_cross_entropy_with_logits(x, target)` with a weight for the positive class.

    Would have caught exp(x) that overflows fp16 (`large_values`), the way out of pytorch#61098 that has its fault too
    (`saturated`), and means over thousands that stick (`long_reduction`).
    """
    shape = _shape(draw)
    args = {"x": _x(draw), "target": Arg(draw.uniform(*shape)), "weight": Arg(draw.gain(shape[-1]))}
    return Op(fn=_bce_with_logits, args=args)


def smooth_l1(draw: Draw) -> Op:
    """`F.smooth_l1_loss(x, target)` on both sides of its corner.

    Would have caught the square of a difference that overflows fp16 though the other branch is taken (`large_values`),
    and fp16 that has no backward on a CPU (torch before 2.11).
    """
    return _to_target(draw, F.smooth_l1_loss)


def huber(draw: Draw) -> Op:
    """`F.huber_loss(x, target, delta=0.5)` on both sides of its corner.

    Would have caught the faults of smooth_l1.
    """
    return _to_target(draw, lambda x, target: F.huber_loss(x, target, delta=0.5))


def l1(draw: Draw) -> Op:
    """`F.l1_loss(x, target)`.

    Would have caught a mean whose sum leaves fp16 (`large_values`) or sticks (`long_reduction`).
    """
    return _to_target(draw, F.l1_loss)


def kl_div(draw: Draw) -> Op:
    """`F.kl_div(F.log_softmax(x), target, reduction="batchmean")`.

    Would have caught NaN from 0 log 0, where a target is 0, and sums that stick (`long_reduction`).
    """
    shape = (4, 2048) if draw.variant == "long_reduction" else (16, 40)
    target = draw.uniform(*shape, high=2.0 / shape[1])
    target[:, 3] = 0.0
    scale = 50.0 if draw.variant == "large_values" else 2.0
    args = {"x": dense(draw.normal(*shape, scale=scale)), "target": Arg(target)}
    return Op(fn=lambda x, target: F.kl_div(F.log_softmax(x, -1), target, reduction="batchmean"), args=args)


def ctc(draw: Draw) -> Op:
    """`F.ctc_loss` of log_softmax, three sequences of different lengths.

    Would have caught path probabilities that are added in the low dtype, and alignments that cannot be (`impossible`:
    their loss is infinite, and zero_infinity must keep it from the gradients).
    """
    targets = draw.integers(3, 5, low=1, high=8)
    if draw.variant == "impossible":
        targets[1] = 3  # five equal labels need nine steps
    lengths = torch.tensor([12, 8, 10]), torch.tensor([5, 5, 3])
    args = {
        "x": dense(draw.normal(12, 3, 8)),
        "targets": Arg(targets),
        "inputs": Arg(lengths[0]),
        "labels": Arg(lengths[1]),
    }
    return Op(fn=_ctc, args=args)


def cosine_similarity(draw: Draw) -> Op:
    """`F.cosine_similarity(x, y)` along rows.

    Would have caught squares that vanish or overflow in fp16 before the root (`small_values`, `large_values`), an eps
    of 1e-8 that is 0 in fp16 (pytorch#8860 in a loss), and NaN of one row in others (`poisoned_row`).
    """
    x, y = _vectors(draw), _vectors(draw)
    if draw.variant == "mixed_operands":
        return Op(fn=lambda x, y, one: F.cosine_similarity(low(x, one), y), args={"x": x, "y": y, "one": unit(40)})
    return Op(fn=lambda x, y: F.cosine_similarity(x, y), args={"x": x, "y": y})


def triplet(draw: Draw) -> Op:
    """`F.triplet_margin_loss(anchor, positive, negative)`.

    Would have caught distances whose squares overflow (`large_values`), and an eps of 1e-6 that is lost in fp16.
    """
    args = {name: _vectors(draw) for name in ("anchor", "positive", "negative")}
    margin = 512.0 if draw.variant == "large_values" else 2.0
    return Op(fn=lambda **a: F.triplet_margin_loss(**a, margin=margin, reduction="none"), args=args)


def _shape(draw: Draw) -> tuple[int, int]:
    return (64, 512) if draw.variant == "long_reduction" else (8, 8)


def _x(draw: Draw) -> Arg:
    return dense(draw.normal(*_shape(draw), scale=300.0 if draw.variant == "large_values" else 2.0))


def _to_target(draw: Draw, loss: Callable[[Tensor, Tensor], Tensor]) -> Op:
    args = {"x": _x(draw), "target": Arg(draw.normal(*_shape(draw)))}
    return Op(fn=lambda x, target: loss(x, target), args=args)


def _vectors(draw: Draw) -> Arg:
    scale = {"small_values": 2.0**-11, "large_values": 256.0}.get(draw.variant, 1.0)
    values = draw.normal(16, 40, scale=scale)
    return dense(poisoned(values) if draw.variant == "poisoned_row" else values)


def _bce_with_logits(x: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(x, target, pos_weight=weight)


def _ctc(x: Tensor, targets: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    return F.ctc_loss(F.log_softmax(x, -1), targets, inputs, labels, zero_infinity=True)


def _run_saturated(lab: Lab, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    logits = torch.tensor([[x] for x, _ in _SATURATED], dtype=torch.float64)
    targets = torch.tensor([[t] for _, t in _SATURATED], dtype=torch.float64)
    right = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    with lab.stage("build"):
        x, one, target = lab.place(logits, grad=True), lab.place(torch.ones(1, 1).double()), lab.place(targets)
    with lab.stage("forward") as draft:
        with lab.enter():
            got = loss(low(x, one), target)
        off = (got.detach().cpu().double() - right).abs() > _WITHIN * right.clamp(min=1.0)
        if bool(off.any()):
            row = int(off.flatten().nonzero()[0])
            text = (
                f"the loss of a logit of {logits[row].item():g} is {got[row].item():.4g}, not {right[row].item():.4g}"
            )
            draft.fail(Status.INACCURATE, text, "saturated")
    with lab.stage("backward") as draft:
        (gradient,) = torch.autograd.grad(got.sum(), [x])
        if bool(((gradient.cpu().double() - (torch.sigmoid(logits) - targets)).abs() > _WITHIN).any()):
            draft.fail(Status.INACCURATE, "a saturated probability has lost its gradient", "saturated")


def _of_probabilities(x: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy(torch.sigmoid(x), target, reduction="none")


def _of_logits(x: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(x, target, reduction="none")


def _of_logarithms(x: Tensor, target: Tensor) -> Tensor:
    """The same loss as the negative log-likelihood of two classes with the logits 0 and x."""
    both = F.log_softmax(torch.cat([torch.zeros_like(x), x], -1), -1)
    return F.nll_loss(both, target[:, 0].long(), reduction="none")[:, None]


_REDUCED = ("base", "large_values", "long_reduction")
_SMOOTH = ("label_smoothing", "smoothing_long_reduction", "soft_targets", "weighted", "weighted_long_reduction")

PROBES: tuple[Probe, ...] = (
    Probe("op.cross_entropy", label_smoothing, _SMOOTH),
    Probe("op.nll", nll, ("base", "long_reduction", "image", "image_long_reduction")),
    Probe("op.nll", saturated, ("saturated",)),
    Probe("op.bce", bce, ("base", "long_reduction")),
    Probe("op.bce", saturated, ("saturated",)),
    Probe("op.bce_with_logits", bce_with_logits, _REDUCED),
    Probe("op.bce_with_logits", saturated, ("saturated",)),
    Probe("op.l1", l1, _REDUCED),
    Probe("op.smooth_l1", smooth_l1, _REDUCED),
    Probe("op.huber", huber, _REDUCED),
    Probe("op.kl_div", kl_div, _REDUCED),
    Probe("op.ctc", ctc, ("base", "impossible")),
    Probe("op.cosine_similarity", cosine_similarity, ("base", "small_values", "large_values", "poisoned_row")),
    Probe("op.cosine_similarity", cosine_similarity, ("mixed_operands",), AUTOCAST),
    Probe("op.triplet", triplet, ("base", "small_values", "large_values", "poisoned_row")),
)
