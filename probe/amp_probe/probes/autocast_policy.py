"""What dtype each operator gives under autocast, as a table: `autocast.policy`."""

from __future__ import annotations

import torch

from amp_probe import policy
from amp_probe.case import Script
from amp_probe.draw import Draw
from amp_probe.harness.script import Lab
from amp_probe.probes.autocast_regions import MIXED
from amp_probe.suite import Probe


def table(draw: Draw) -> Script:
    """The dtypes that come out of about 50 operators: given float32, given the low dtype, given both.

    It is `ok` once it was seen, whatever it says, since devices differ by design; an operator that raises is noted.
    Would have settled what is disputed in pytorch#42218, pytorch#61098 and accelerate#2033: which operators a device
    keeps in float32.
    """
    return Script(_observe)


def _observe(lab: Lab) -> None:
    for inputs in policy.INPUTS:
        with lab.stage(inputs) as draft, torch.no_grad():
            with lab.enter():
                seen = policy.observe(inputs, lab.device, lab.low)
            draft.dtypes |= seen.dtypes
            for name, said in seen.refusals.items():
                lab.note(f"{name}, {inputs}: {said}")


PROBES: tuple[Probe, ...] = (Probe("autocast.policy", table, precisions=MIXED),)
