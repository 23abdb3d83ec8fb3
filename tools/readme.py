"""Run the commands that a Markdown file shows, and put what they print where it shows it.

A block to refresh is a comment and a fence:

    <!-- run: amp-probe --help -->
    ```text
    ...
    ```

`run:` keeps stdout, `run all:` both streams. `readme.py FILE` rewrites; `readme.py FILE --only TEXT` refreshes the
commands that contain TEXT; `--check` rewrites nothing and exits with 1 where a block is stale.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(r"(<!-- run( all)?: (amp-probe [^\n]*?) -->\n```\w*\n)(.*?)(^```$)", re.DOTALL | re.MULTILINE)


def printed(command: str, both: bool) -> str:
    """What an amp-probe command prints on a pipe, 100 columns wide, without colour."""
    environ = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    arguments = [sys.executable, "-m", "amp_probe", *shlex.split(command)[1:]]
    errors = subprocess.STDOUT if both else None
    done = subprocess.run(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environ, check=False
    )
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.decode().splitlines())


def refreshed(text: str, only: str) -> str:
    """The text with every block whose command contains `only` as the command prints it now."""

    def block(match: re.Match[str]) -> str:
        if only not in match[3]:
            return match[0]
        return match[1] + printed(match[3], bool(match[2])) + match[5]

    return BLOCK.sub(block, text)


def main() -> int:
    """Rewrite or check one file; gives the exit code."""
    parser = argparse.ArgumentParser(description="Refresh the command output that a Markdown file shows.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT", help="only commands that contain TEXT")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a block is stale")
    asked = parser.parse_args()
    before = asked.file.read_text(encoding="utf-8")
    after = refreshed(before, asked.only)
    if asked.check:
        return int(before != after)
    asked.file.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
