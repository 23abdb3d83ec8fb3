"""Text fit for a document: one line, without paths, host or user."""

from __future__ import annotations

import functools
import getpass
import platform
import re

_PATH = re.compile(r"(?:[A-Za-z]:)?(?:[\\/][\w.+@~-]+){2,}[\\/]?")
_LIMIT = 400


def scrub(text: str) -> str:
    """One line of at most 400 characters, paths cut to their last part, this machine's and user's names replaced."""
    line = _PATH.sub(lambda m: re.split(r"[\\/]", m[0].rstrip("\\/"))[-1], " ".join(text.split()))
    for word in _private_words():
        line = re.sub(rf"\b{re.escape(word)}\b", "…", line)
    return line if len(line) <= _LIMIT else line[: _LIMIT - 1] + "…"


@functools.cache
def _private_words() -> tuple[str, ...]:
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = ""
    return tuple(w for w in (platform.node(), user) if len(w) > 2)
