"""`python -m amp_probe` is the `amp-probe` command."""

from __future__ import annotations

import sys

from amp_probe.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
