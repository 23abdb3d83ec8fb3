"""Every probe that ships, one file a family."""

from __future__ import annotations

from amp_probe.suite import Probe

ALL: tuple[Probe, ...] = ()
