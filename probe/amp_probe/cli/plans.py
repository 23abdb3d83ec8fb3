"""The plans that surveys lead to, for the commands that show them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from amp_matrix.decide import decide
from amp_matrix.environment import identity_key
from amp_matrix.matrix import merge, select
from amp_matrix.plan import Plan
from amp_matrix.store import Store, StoreError
from amp_matrix.survey import Environment, Survey


def of(surveys: Sequence[Survey], store: Store | None = None) -> tuple[Plan, ...]:
    """For every device and environment among the surveys: the plan to train and the plan to infer.

    What the store knows of the same environments counts too, as it does for choose. The environment of a device's
    newest survey is taken as the one of now.
    """
    known = merge(surveys, _stored(surveys, store) if store else ())
    return tuple(plan for device, now in _places(surveys) for plan in _plans(device, now, known))


def _plans(device: str, now: Environment, surveys: Sequence[Survey]) -> Iterator[Plan]:
    evidence, at = select(surveys, now.identity), time.time()
    yield decide(evidence, now, device=device, task="train", at=at)
    yield decide(evidence, now, device=device, task="infer", at=at)


def _places(surveys: Sequence[Survey]) -> Iterator[tuple[str, Environment]]:
    """Each device and identity once, by device, with the environment of its newest survey."""
    newest = {(s.device, identity_key(s.environment)): s.environment for s in sorted(surveys, key=lambda s: s.started)}
    yield from ((device, newest[device, key]) for device, key in sorted(newest))


def _stored(surveys: Sequence[Survey], store: Store) -> Iterator[Survey]:
    for identity in sorted({identity_key(s.environment) for s in surveys}):
        try:
            yield from store.load(identity).surveys
        except StoreError:  # the surveys at hand are enough; the run has told what keeps the store from being written
            return
