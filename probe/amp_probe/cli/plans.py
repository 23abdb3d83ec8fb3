"""The plans that surveys lead to, for the commands that show them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_matrix.decide import decide, seconds_of
from amp_matrix.environment import identity_key
from amp_matrix.matrix import merge, select
from amp_matrix.plan import Plan
from amp_matrix.store import Store, StoreError
from amp_matrix.survey import Survey
from amp_probe.cli import inputs


def of(surveys: Sequence[Survey], store: Store | None = None, devices: Sequence[str] = ()) -> tuple[Plan, ...]:
    """For every device and environment among the surveys: the plan to train and the plan to infer.

    `devices` narrows the plans, and never what they rest on: a device that is alike counts too.

    What the store knows of the same environments counts too, as it does for choose. The environment and the start of
    a device's newest survey are taken as those of now, so that the same surveys give the same report.
    """
    known = merge(surveys, _stored(surveys, store) if store else ())
    return tuple(
        plan for newest in _places(surveys) if inputs.means(devices, newest.device) for plan in _plans(newest, known)
    )


def _plans(newest: Survey, surveys: Sequence[Survey]) -> Iterator[Plan]:
    now, at = newest.environment, seconds_of(newest.started)
    evidence = select(surveys, now.identity)
    yield decide(evidence, now, device=newest.device, task="train", at=at)
    yield decide(evidence, now, device=newest.device, task="infer", at=at)


def _places(surveys: Sequence[Survey]) -> Iterator[Survey]:
    """The newest survey of each device and identity, by device. Of a simulated device there is nothing to plan."""
    real = (s for s in surveys if "simulated" not in s.environment.identity)
    newest = {(s.device, identity_key(s.environment)): s for s in sorted(real, key=lambda s: s.started)}
    yield from (newest[place] for place in sorted(newest))


def _stored(surveys: Sequence[Survey], store: Store) -> Iterator[Survey]:
    for identity in sorted({identity_key(s.environment) for s in surveys}):
        try:
            yield from store.load(identity).surveys
        except StoreError:  # the surveys at hand are enough; the run has told what keeps the store from being written
            return
