"""The plans that surveys lead to, for the commands that show them."""

from __future__ import annotations

from collections.abc import Sequence

from amp_matrix.plan import Plan
from amp_matrix.survey import Survey


def of(surveys: Sequence[Survey]) -> tuple[Plan, ...]:
    """For every device and environment among the surveys: the plan to train and the plan to infer.

    The environment of a device's newest survey is taken as the one of now.
    """
    raise NotImplementedError
