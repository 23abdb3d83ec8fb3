"""`amp-probe check`: the gate for continuous integration."""

from __future__ import annotations

from amp_probe.cli import options as o

EXAMPLES = """\b
Examples:
  amp-probe check --require "cpu: bf16-mixed: train"
  amp-probe check survey.json --require op.softmax@bf16-mixed
  amp-probe check --baseline amp-baseline.json --write-baseline
  amp-probe check --baseline amp-baseline.json --strict
"""


def command(path: o.Paths = None) -> int:
    """x"""
    raise NotImplementedError
