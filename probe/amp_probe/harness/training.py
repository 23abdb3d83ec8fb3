"""Trains a model on a lab, re-anchored against float64 at some steps; then judges how far the parameters came."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from amp_matrix.survey import Status
from amp_probe.case import Training
from amp_probe.draw import Draw
from amp_probe.harness.problem import Named, Problem, counting, float64, judge_buffers, judge_gradients, problem
from amp_probe.harness.recorder import Draft, Fault
from amp_probe.harness.script import Lab
from amp_probe.harness.update import judged_step, lost_eps

ANCHORS = (0, 5, 20)
INITIAL_SCALE = 1024.0
LEAST_COSINE = 0.95
RATIO = (0.8, 1.25)
FALL = 0.3


@dataclass(frozen=True)
class Course:
    """The whole training in float64: the loss of every step, where the parameters were and came, what had gradients."""

    losses: tuple[float, ...]
    start: Named
    end: Named
    moving: frozenset[str]


_courses: dict[Draw, tuple[Problem, Course]] = {}
_KEPT_COURSES = 8  # a plan takes a variant's precisions one after the other


def run_training(case: Training, lab: Lab) -> None:
    """Train on the lab: stages `build`, `step0`, `step5`, `step20`, `last`, `movement` (docs/numerics.md).

    At the anchors the float64 model and the ideal take the current parameters, and the gradients are judged; the
    update is judged against a float64 optimizer fed the measured gradients and state.
    """
    with lab.stage("build"):
        run = _Run(case, lab)
    for anchor in anchors(case.steps):
        name = "last" if anchor == case.steps - 1 else f"step{anchor}"
        with lab.stage(name) as draft:
            while len(run.losses) < anchor:
                run.differentiate()
                run.update()
            run.anchor(draft)
    with lab.stage("movement") as draft:
        run.conclude(draft)


def anchors(steps: int) -> tuple[int, ...]:
    """The steps at which a training is re-anchored: 0, 5, 20 and the last."""
    return tuple(sorted({a for a in ANCHORS if a < steps} | {steps - 1}))


def course(case: Training, draw: Draw) -> tuple[Problem, Course]:
    """The problem and its float64 training, from this process's cache where they stand there."""
    if draw not in _courses:
        while len(_courses) >= _KEPT_COURSES:
            _courses.pop(next(iter(_courses)))
        posed = problem(case.model, case.loss, case.batch, draw)
        _courses[draw] = (posed, _train(case, posed))
    return _courses[draw]


class _Run:
    """One cell while it runs."""

    def __init__(self, case: Training, lab: Lab) -> None:
        self.case, self.lab = case, lab
        self.problem, self.right = course(case, lab.draw)
        self.model = self.problem.on(lab)
        self.parameters = dict(self.model.named_parameters())
        self.x, self.target = lab.place(case.batch[0]), lab.place(case.batch[1])
        self.optimizer = case.optimizer(list(self.model.parameters()))
        scaled = lab.precision.compute == "fp16-mixed"
        self.scaler = torch.amp.GradScaler(lab.device.type, init_scale=INITIAL_SCALE) if scaled else None
        self.losses: list[Tensor] = []

    def differentiate(self) -> None:
        """Forward and backward; the gradients then stand unscaled in the parameters."""
        self.optimizer.zero_grad()
        with self.lab.enter():
            loss = self.case.loss(self.model(self.x), self.target)
        self.losses.append(loss.detach())
        if self.scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            self.scaler.unscale_(self.optimizer)

    def update(self) -> None:
        """The optimizer's step, through the scaler where there is one."""
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def anchor(self, draft: Draft) -> None:
        """One step whose gradients and update are judged."""
        self._finite(draft)
        scale = self._scale(draft)
        buffers = self.problem.buffers(self.model)
        _, right = self.problem.exact(self.parameters, buffers)
        ideal = self.problem.ideal(self.lab, self.parameters, scale)
        self.differentiate()
        self.lab.synchronize()
        judge_gradients(self.lab, draft, self.model, right, ideal)
        judge_buffers(self.lab, draft, self.model, buffers)
        judged_step(self.lab, draft, self.parameters, self.optimizer, self.case.optimizer, self.update)

    def conclude(self, draft: Draft) -> None:
        """Judge the whole: the loss moved, every tensor moved, and as far as in float64."""
        self._finite(draft)
        self._curves(draft)
        losses = draft.curves["loss"]
        if len(set(losses)) == 1 and len(losses) > 1:
            draft.fail(Status.INERT, f"the loss stayed at {losses[0]:.6g} for {len(losses)} steps", "unmoved")
        by_movement = isinstance(self.optimizer, torch.optim.SGD)
        for name, parameter in self.parameters.items():
            if name in self.right.moving:
                start, end = self.right.start[name], self.right.end[name]
                judge_movement(draft, name, float64(parameter) - start, end - start, by_movement)
        if not by_movement:
            judge_fall(draft, losses, self.right.losses)

    def _scale(self, draft: Draft) -> float:
        """The scaler's scale; it can only have fallen, and then a step was skipped for a gradient that overflowed."""
        if self.scaler is None:
            return 1.0
        scale: float = self.scaler.get_scale()
        draft.numbers["scale"] = scale
        if scale < INITIAL_SCALE:
            reason = f"the scaler skipped steps: its scale fell from {INITIAL_SCALE:g} to {scale:g}"
            draft.fail(Status.NONFINITE, reason, "skipped_step")
        return scale

    def _finite(self, draft: Draft) -> None:
        """Fault(nonfinite) where a parameter or a loss is not: nothing after it can be judged."""
        done = f"after {len(self.losses)} steps"
        for name, parameter in self.parameters.items():
            if not parameter.isfinite().all():
                self._curves(draft)
                lost = lost_eps(self.optimizer, parameter)
                why = f": {lost}" if lost else ""
                raise Fault(Status.NONFINITE, f"{name} is NaN or Inf {done}{why}", "format" if lost else "backend")
        if self.losses and not self.losses[-1].isfinite():
            self._curves(draft)
            raise Fault(Status.NONFINITE, f"the loss is {float(self.losses[-1])} {done}", "backend")

    def _curves(self, draft: Draft) -> None:
        draft.curves["loss"] = tuple(float(x) for x in self.losses)
        draft.curves["reference"] = self.right.losses


def _train(case: Training, posed: Problem) -> Course:
    """The training in float64 on the CPU."""
    start = {name: float64(p) for name, p in posed.module.named_parameters()}
    end = {name: nn.Parameter(value.clone()) for name, value in start.items()}
    optimizer = case.optimizer(list(end.values()))
    losses: list[float] = []
    moving: set[str] = set()
    for step in range(case.steps):
        loss, gradients = posed.exact(end)
        losses.append(loss)
        moving |= counting(gradients) if step in anchors(case.steps) else set()
        for name, parameter in end.items():
            parameter.grad = gradients[name]
        optimizer.step()
    return Course(tuple(losses), start, {name: p.detach() for name, p in end.items()}, frozenset(moving))


def judge_movement(draft: Draft, name: str, got: Tensor, right: Tensor, by_movement: bool) -> None:
    """Judge how far and which way a tensor went, both in float64: that it moved at all, and with SGD where to."""
    if not got.any():
        draft.fail(Status.INERT, f"{name} never moved", "unmoved")
        return
    if not by_movement:
        return
    cosine = float((got * right).sum() / (got.norm() * right.norm()))
    ratio = float(got.norm() / right.norm())
    draft.numbers["cosine"] = min(cosine, draft.numbers.get("cosine", math.inf))
    draft.numbers["ratio_low"] = min(ratio, draft.numbers.get("ratio_low", math.inf))
    draft.numbers["ratio_high"] = max(ratio, draft.numbers.get("ratio_high", 0.0))
    if not (cosine >= LEAST_COSINE and RATIO[0] <= ratio <= RATIO[1]):
        reason = f"{name} moved {ratio:.3g} times as far as in float64, cosine {cosine:.3g}"
        draft.fail(Status.INACCURATE, reason, "movement")


def judge_fall(draft: Draft, losses: Sequence[float], right: Sequence[float]) -> None:
    """AdamW: after some steps its movement is noise, and only the fall of the loss can be compared."""
    part = (losses[0] - losses[-1]) / (right[0] - right[-1])
    draft.numbers["fall"] = part
    if not abs(part - 1.0) <= FALL:
        draft.fail(Status.INACCURATE, f"the loss fell {part:.3g} times as far as in float64", "fall")
