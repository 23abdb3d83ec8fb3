"""Probes as declarations, and the plan of cells that a run selects from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from amp_matrix import essential
from amp_matrix.precision import COMPUTES
from amp_matrix.survey import cell_id
from amp_probe.case import Case
from amp_probe.numerics import Draw
from amp_probe.request import SUITES, Spec, Suite

_QUICK_SPEED = ("speed.train_step", "speed.infer")


@dataclass(frozen=True)
class Probe:
    """One question, declared: `make` gets the inputs' source (which knows the variant) and returns the case.

    `revision` goes up when the question or its judgement changes; older evidence then no longer counts.
    `timeout` is wall seconds a cell. `alone`: runs with nothing beside it (timings).
    """

    name: str
    make: Callable[[Draw], Case]
    variants: tuple[str, ...] = ("base",)
    precisions: tuple[str, ...] = COMPUTES
    revision: int = 1
    timeout: float = 10.0
    alone: bool = False
    suite: Suite = "core"


def plan(
    probes: Iterable[Probe],
    suite: Suite = "core",
    globs: Sequence[str] = (),
    precisions: Sequence[str] = (),
    timeout: float | None = None,
) -> tuple[Spec, ...]:
    """The ordered cells of a run: the suite's, narrowed by probe globs and precisions; timings last.

    A glob matches a probe's name, its name with the variant (`op.softmax[large]`), or the cell's whole id.
    """
    specs = [s for probe in probes for s in _specs(probe, timeout) if _in_suite(probe, s, suite)]
    specs = [s for s in specs if not precisions or s.precision in precisions]
    specs = [s for s in specs if not globs or any(_matches(s, g) for g in globs)]
    return tuple(sorted(specs, key=lambda s: s.alone))


def _specs(probe: Probe, timeout: float | None) -> Iterable[Spec]:
    for variant in probe.variants:
        for precision in probe.precisions:
            yield Spec(
                probe=probe.name,
                variant=variant,
                precision=precision,
                tier=essential.tier(cell_id(probe.name, variant, precision)),
                revision=probe.revision,
                timeout=timeout or probe.timeout,
                alone=probe.alone,
            )


def _in_suite(probe: Probe, spec: Spec, suite: Suite) -> bool:
    if suite == "quick":
        return spec.tier == "essential" or probe.name in _QUICK_SPEED
    return SUITES.index(probe.suite) <= SUITES.index(suite)


def _matches(spec: Spec, glob: str) -> bool:
    name = f"{spec.probe}[{spec.variant}]"
    pattern = glob.replace("[", "[[]")  # brackets are a variant here, never a set of characters
    return any(fnmatchcase(text, pattern) for text in (spec.probe, name, spec.id))
