"""What a GradScaler does to gradients of every kind: `scaler.unscale`, `scaler.sparse`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from amp_matrix.survey import Status
from amp_probe.case import Script
from amp_probe.draw import Draw, on_grid
from amp_probe.harness.problem import float64
from amp_probe.harness.recorder import Draft
from amp_probe.harness.script import Lab
from amp_probe.harness.update import once_rounded
from amp_probe.probes.bench import BACKOFF, SCALE, SCALED, check_scale, feed, judge, make_scaler
from amp_probe.suite import Probe


def unscale(draw: Draw) -> Script:
    """`unscale_` on gradients of many shapes, layouts and sizes: each is divided by the scale, exactly.

    Then SGD moves every parameter as float64 does. Would have caught pytorch#184286 (gradients of fp16 and bf16
    parameters became zeros in silence), a kernel that leaves out the tail of a tensor, or takes a view for dense.
    """
    gradients = _gradients(draw)

    def run(lab: Lab) -> None:
        with lab.stage("build"):
            parameters = {name: _parameter(lab, g) for name, g in gradients.items()}
            optimizer = torch.optim.SGD(list(parameters.values()), lr=0.5)
            scaler = make_scaler(lab)
        with lab.stage("unscale") as draft:
            feed(lab, scaler, parameters.values(), gradients.values())
            scaler.unscale_(optimizer)
            for name, parameter in parameters.items():
                _exact(draft, f"the gradient of {name}", parameter.grad, gradients[name])
        with lab.stage("step") as draft:
            scaler.step(optimizer)
            scaler.update()
            for name, parameter in parameters.items():
                _exact(draft, name, parameter, once_rounded(1.0 - 0.5 * gradients[name], lab.storage))

    return Script(run)


def sparse(draw: Draw) -> Script:
    """The gradient of `nn.Embedding(sparse=True)`, a token more than once in it: unscaled, stepped by SGD, and skipped.

    Would have caught a scaler that does not look into sparse gradients, divides repeated rows twice, or moves rows
    that were not used.
    """
    table, cotangent = draw.normal(12, 8), draw.normal(16, 8)
    tokens = draw.integers(16, high=9)

    def run(lab: Lab) -> None:
        with lab.stage("build"):
            embedding = nn.Embedding(12, 8, sparse=True).to(lab.device, lab.storage)
            embedding.weight.data.copy_(lab.place(table))
            optimizer = torch.optim.SGD(embedding.parameters(), lr=0.5)
            scaler = make_scaler(lab)
            right = torch.zeros_like(table).index_add_(0, tokens, cotangent)
        with lab.stage("backward") as draft:
            scaler.scale((embedding(lab.place(tokens)) * lab.place(cotangent)).sum()).backward()
            _is_sparse(draft, embedding.weight)
        with lab.stage("unscale") as draft:
            scaler.unscale_(optimizer)
            judge(lab, draft, "the gradient", _dense(embedding.weight.grad), right)
        with lab.stage("step") as draft:
            scaler.step(optimizer)
            scaler.update()
            judge(lab, draft, "weight", embedding.weight, table - 0.5 * right)
            _exact(draft, "the rows that were not used", embedding.weight[9:], table[9:])
        with lab.stage("inf_step") as draft:
            _sparse_inf(lab, draft, embedding, optimizer, scaler)

    return Script(run)


def _sparse_inf(
    lab: Lab, draft: Draft, embedding: nn.Embedding, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> None:
    optimizer.zero_grad()
    before = float64(embedding.weight)
    scaler.scale((embedding(lab.place(torch.tensor([3, 5, 3]))) * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    check_scale(draft, scaler, SCALE * BACKOFF)
    _exact(draft, "the weight in a step with an infinite gradient", embedding.weight, before)


def _is_sparse(draft: Draft, weight: Tensor) -> None:
    if weight.grad is None:
        draft.fail(Status.INACCURATE, "the embedding got no gradient", "no_gradient")
    elif not weight.grad.is_sparse:
        draft.fail(Status.INERT, "the gradient of nn.Embedding(sparse=True) is dense", "dense")


def _dense(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient.to_dense()


def _gradients(draw: Draw) -> Mapping[str, Tensor]:
    """By name, on the grid with and without the scale: many sizes of tensors, and of values."""
    return {
        "a matrix": _small(draw, 48, 40),
        "a long vector": _small(draw, 5003),
        "a block": _small(draw, 3, 5, 7),
        "channels_last": _small(draw, 2, 8, 5, 5),
        "a transposed view": _small(draw, 24, 16),
        "one element": _small(draw, 1),
        "one number": _small(draw),
        "nothing": torch.zeros(0, 4, dtype=torch.float64),
        "zeros": torch.zeros(33, dtype=torch.float64),
    }


def _small(draw: Draw, *shape: int) -> Tensor:
    """From 2^-14 to 16: times the scale they are exact in float16 too."""
    return on_grid(draw.normal(*shape).clamp(-4, 4) * 2.0 ** draw.integers(*shape, low=-12, high=3).double())


def _parameter(lab: Lab, gradient: Tensor) -> nn.Parameter:
    ones = torch.ones_like(gradient)
    if gradient.dim() == 4:
        return nn.Parameter(lab.place(ones).to(memory_format=torch.channels_last))
    if gradient.shape == (24, 16):
        return nn.Parameter(lab.place(ones.T.contiguous()).T)
    return nn.Parameter(lab.place(ones))


def _exact(draft: Draft, what: str, got: Tensor | None, right: Tensor) -> None:
    if got is None:
        draft.fail(Status.INACCURATE, f"{what} is gone", "no_gradient")
        return
    values = float64(got)
    if right.any() and not values.any():
        draft.fail(Status.INACCURATE, f"{what} is all zeros", "zero_gradient")
    elif not torch.equal(values, right):
        count = int((values != right).sum())
        draft.fail(Status.INACCURATE, f"{what} is wrong in {count} of {right.numel()} values", "exact")


PROBES: tuple[Probe, ...] = (
    Probe("scaler.unscale", unscale, precisions=SCALED),
    Probe("scaler.sparse", sparse, precisions=SCALED),
)
