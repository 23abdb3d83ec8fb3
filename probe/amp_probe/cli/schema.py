"""`amp-probe schema`: the JSON Schema of the documents."""

from __future__ import annotations

import json

from amp_matrix import codec
from amp_probe.cli import output

EXAMPLES = """\b
Examples:
  amp-probe schema > survey-v1.json
"""


def command() -> int:
    """Print the JSON Schema (2020-12) of surveys and matrix documents."""
    output.data((json.dumps(codec.json_schema(), indent=2, sort_keys=True) + "\n").encode())
    return 0
