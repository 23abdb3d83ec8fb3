"""The casts of weights that an autocast region keeps until it ends: `autocast.cache`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amp_matrix.survey import Status
from amp_probe.case import Script, Training
from amp_probe.draw import Draw
from amp_probe.harness.problem import Problem, float64, judge_gradients, problem
from amp_probe.harness.recorder import Draft, Fault
from amp_probe.harness.script import Lab
from amp_probe.harness.training import INITIAL_SCALE, Course, course, judge_fall, judge_movement
from amp_probe.probes.autocast_regions import MIXED, disabled
from amp_probe.probes.models import MLP, numbers, squared_error
from amp_probe.suite import Probe

_STEPS = 20
_UNMOVED = 1e-2
"""A loss that moved by less than this part of float64's fall did not move: a device's sums may differ by a little."""


def cache(draw: Draw) -> Script:
    """A weight changes while a region keeps its cast: does the next forward pass see it? And is its graph kept?

    Whole training loops: `loop` inside one region (Flow-Factory PR 186: the loss never moves, on every device),
    `loop_nested` with a region a step inside an outer one, `loop_disabled` inside a disabled one, whose end alone
    drops the casts; the controls `loop_uncached` and `loop_apart` (a region a step) must train as float64 does.
    One change of one weight: by hand (`inplace`, `data`), by an optimizer (`optimizer`, `foreach`), by an average of
    weights (`ema`), by `load_state_dict`, and with an inner region left after it (`inner_left`): a stale cast is
    `inert`. The controls `uncached`, `cleared`, `left`, `replaced` must see it. `other_dtype`: a cast to one low dtype
    must not serve a region of the other. `no_grad_first`, `inference_first`, `unfrozen`, `accumulate`: weights must
    keep their graph after a pass without one (pytorch#112583), and gradients add up.
    """
    if draw.variant in _LOOPS:
        case = Training(MLP, numbers(draw), squared_error, _sgd, steps=_STEPS)
        return Script(functools.partial(_loop, case, _LOOPS[draw.variant]))
    if draw.variant in _FIRST:
        posed = problem(MLP, squared_error, numbers(draw), draw)
        return Script(functools.partial(_graph, posed, _FIRST[draw.variant]))
    return Script(functools.partial(_change, _Layer(draw), _CHANGES[draw.variant]))


# --- training loops


@dataclass(frozen=True)
class _Regions:
    """The region around a training loop, and the one around each step's forward pass."""

    around: Callable[[Lab], AbstractContextManager[None]]
    step: Callable[[Lab], AbstractContextManager[None]]


def _on(lab: Lab) -> AbstractContextManager[None]:
    return lab.enter()


def _off(lab: Lab) -> AbstractContextManager[None]:
    return disabled(lab)


def _none(lab: Lab) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def _uncached(lab: Lab) -> Iterator[None]:
    with lab.enter(), torch.autocast(lab.device.type, dtype=lab.low, cache_enabled=False):
        yield


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _loop(case: Training, regions: _Regions, lab: Lab) -> None:
    """Train; then, still in the region, judge the gradients once more: one stale weight among several shows there."""
    with lab.stage("build"):
        posed, course_ = course(case, lab.draw)
        model = posed.on(lab)
        parameters = dict(model.named_parameters())
        x, target = lab.place(case.batch[0]), lab.place(case.batch[1])
        optimizer = case.optimizer(list(model.parameters()))
        scaled = lab.low is torch.float16
        scaler = torch.amp.GradScaler(lab.device.type, init_scale=INITIAL_SCALE, enabled=scaled)
    losses: list[Tensor] = []
    with lab.stage("steps"), regions.around(lab):
        for step in range(case.steps + 1):
            optimizer.zero_grad()
            with regions.step(lab):
                loss = case.loss(model(x), target)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.unscale_(optimizer)
            if step < case.steps:
                losses.append(loss.detach())
                scaler.step(optimizer)
                scaler.update()
    with lab.stage("movement") as draft:
        _conclude(draft, model, [float(loss) for loss in losses], course_)
    with lab.stage("gradients") as draft:
        _, right = posed.exact(parameters)
        ideal = posed.ideal(lab, parameters, INITIAL_SCALE if scaled else 1.0)
        judge_gradients(lab, draft, model, right, ideal)


def _conclude(draft: Draft, model: nn.Module, losses: list[float], right: Course) -> None:
    """Judge the loop by its losses, and by how far and where to every parameter went."""
    draft.curves |= {"loss": tuple(losses), "reference": right.losses}
    if max(losses) - min(losses) <= _UNMOVED * (right.losses[0] - right.losses[-1]):
        raise Fault(Status.INERT, f"the loss stayed at {losses[0]:.6g} for {len(losses)} steps", "unmoved")
    judge_fall(draft, losses, right.losses)
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise Fault(Status.NONFINITE, f"{name} is NaN or Inf after {len(losses)} steps", "backend")
        if name in right.moving:
            start, end = right.start[name], right.end[name]
            judge_movement(draft, name, float64(parameter) - start, end - start, by_movement=True)


_LOOPS = {
    "loop": _Regions(_on, _none),
    "loop_nested": _Regions(_on, _on),
    "loop_disabled": _Regions(_off, _on),
    "loop_uncached": _Regions(_uncached, _none),
    "loop_apart": _Regions(_none, _on),
}


# --- one change of one weight


class _Layer:
    """The values of a linear layer: its inputs, its weight before a change and after it."""

    def __init__(self, draw: Draw) -> None:
        self.x, self.before = draw.normal(8, 32), draw.normal(16, 32, scale=0.25)
        self.after = self.before.roll(1, 0)


@dataclass
class _Work:
    """A layer on a lab: `linear.weight` is what changes, to `new`."""

    lab: Lab
    linear: nn.Linear
    x: Tensor
    new: Tensor


def _change(layer: _Layer, change: _Change, lab: Lab) -> None:
    with lab.stage("build"):
        linear = nn.Linear(32, 16, bias=False, device=lab.device)
        linear.weight = nn.Parameter(lab.place(layer.before))
        work = _Work(lab, linear, lab.place(layer.x, grad=True), lab.place(layer.after))
    with lab.stage("change") as draft:
        with change.around(lab):
            with change.region(lab):
                before = F.linear(work.x, linear.weight)
                if change.inside:
                    change.act(work)
                    after = F.linear(work.x, linear.weight)
            if not change.inside:
                change.act(work)
                with change.region(lab):
                    after = F.linear(work.x, linear.weight)
        if torch.equal(after, before):
            raise Fault(Status.INERT, "the weight changed and the output did not: its cast is stale", "stale")
        lab.judge(draft, "output", after, layer.x @ layer.after.t(), _rounded(layer, after.dtype))
    with lab.stage("backward") as draft:
        after.float().sum().backward()  # type: ignore[no-untyped-call]
        _judge_backward(lab, draft, layer, work)


def _rounded(layer: _Layer, dtype: torch.dtype) -> Tensor:
    """The output rounded once; the operands are on the grid, and exact in every precision."""
    return (layer.x @ layer.after.t()).to(dtype).double()


def _judge_backward(lab: Lab, draft: Draft, layer: _Layer, work: _Work) -> None:
    """The gradient of the inputs shows which weight backward used; that of the weight, that its graph is whole."""
    ones = torch.ones(len(layer.x), len(layer.after), dtype=torch.float64)
    for name, leaf, right in (
        ("x", work.x, ones @ layer.after),
        ("weight", work.linear.weight, ones.t() @ layer.x),
    ):
        if leaf.grad is None:
            draft.fail(Status.INACCURATE, f"{name} got no gradient", "no_gradient")
        else:
            lab.judge(draft, f"grad {name}", leaf.grad, right, right.to(lab.low).double())


@dataclass(frozen=True)
class _Change:
    """How a weight changes, and the regions around: `inside` one that has used it already, or between two of them."""

    act: Callable[[_Work], None]
    region: Callable[[Lab], AbstractContextManager[None]] = _on
    around: Callable[[Lab], AbstractContextManager[None]] = _none
    inside: bool = True


def _inplace(work: _Work) -> None:
    with torch.no_grad():
        work.linear.weight.copy_(work.new)


def _data(work: _Work) -> None:
    work.linear.weight.data = work.new.clone()


def _by_optimizer(foreach: bool, work: _Work) -> None:
    weight = work.linear.weight
    optimizer = torch.optim.SGD([weight], lr=1.0, foreach=foreach)
    weight.grad = weight.detach() - work.new
    optimizer.step()
    weight.grad = None


def _ema(work: _Work) -> None:
    with torch.no_grad():
        work.linear.weight.lerp_(work.new, 1.0)


def _load(work: _Work) -> None:
    work.linear.load_state_dict({"weight": work.new})


def _inner_left(work: _Work) -> None:
    _inplace(work)
    with work.lab.enter():
        pass


def _cleared(work: _Work) -> None:
    _inplace(work)
    torch.clear_autocast_cache()


def _replaced(work: _Work) -> None:
    work.linear.weight = nn.Parameter(work.new.clone())


_CHANGES = {
    "inplace": _Change(_inplace),
    "data": _Change(_data),
    "optimizer": _Change(functools.partial(_by_optimizer, False)),
    "foreach": _Change(functools.partial(_by_optimizer, True)),
    "ema": _Change(_ema),
    "load_state_dict": _Change(_load),
    "inner_left": _Change(_inner_left),
    "uncached": _Change(_inplace, region=_uncached),
    "cleared": _Change(_cleared),
    "left": _Change(_inplace, inside=False),
    "replaced": _Change(_replaced),
}


# --- the graph of a weight


def _graph(posed: Problem, first: Callable[[nn.Module, Tensor, Problem, Lab], None], lab: Lab) -> None:
    """Do something first in a region, then a forward pass with a graph there; every gradient must be right."""
    with lab.stage("build"):
        model = posed.on(lab)
        x, target = lab.place(posed.batch[0]), lab.place(posed.batch[1])
        parameters = dict(model.named_parameters())
        _, right = posed.exact(parameters)
    with lab.stage("forward"), lab.enter():
        first(model, x, posed, lab)
        loss = posed.loss(model(x), target)
    with lab.stage("backward") as draft:
        loss.backward()  # type: ignore[no-untyped-call]
        times = 2.0 if lab.draw.variant == "accumulate" else 1.0
        for parameter in parameters.values():
            if parameter.grad is not None:
                parameter.grad /= times
        judge_gradients(lab, draft, model, right, posed.ideal(lab, parameters))


def _without_graph(mode: Callable[[], AbstractContextManager[None]], model: nn.Module, x: Tensor, *_: object) -> None:
    with mode():
        model(x)


def _frozen(model: nn.Module, x: Tensor, *_: object) -> None:
    model.requires_grad_(False)
    model(x)
    model.requires_grad_(True)


def _differentiated(model: nn.Module, x: Tensor, posed: Problem, lab: Lab) -> None:
    posed.loss(model(x), lab.place(posed.batch[1])).backward()  # type: ignore[no-untyped-call]


def _in_other_dtype(model: nn.Module, x: Tensor, posed: Problem, lab: Lab) -> None:
    other = torch.float16 if lab.low is torch.bfloat16 else torch.bfloat16
    with torch.autocast(lab.device.type, dtype=other):
        model(x)


_FIRST: dict[str, Callable[[nn.Module, Tensor, Problem, Lab], None]] = {
    "no_grad_first": functools.partial(_without_graph, torch.no_grad),
    "inference_first": functools.partial(_without_graph, torch.inference_mode),
    "unfrozen": _frozen,
    "accumulate": _differentiated,
    "other_dtype": _in_other_dtype,
}

PROBES: tuple[Probe, ...] = (Probe("autocast.cache", cache, (*_LOOPS, *_CHANGES, *_FIRST), MIXED),)
