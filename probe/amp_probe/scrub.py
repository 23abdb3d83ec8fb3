"""Text fit for a document: one line, without paths, host or user."""

from __future__ import annotations

import functools
import getpass
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterable

_LIMIT = 400
_READ = 4000
"""No more of a text is looked at; an exception may quote megabytes."""
_HIDDEN = "…"
_NOBODY = frozenset(
    [
        *("root", "user", "users", "home", "admin", "administrator", "nobody", "ubuntu", "debian", "localhost"),
        *("runner", "runneradmin", "codespace", "jovyan", "vscode", "sandbox", "builder"),
    ]
)
"""Names that many machines share: they tell nothing, and a text may mean them as words (a square root)."""

_PART = r"[\w.+@~$-]+"
_SPACED = rf"{_PART}(?: {_PART}){{0,2}}"
_BACK = r"(?:\\\\?)"
_SUFFIX = r"\.(?:py[cdx]?|[ch]|cc|[ch]pp|cxx|cuh?|hip|mm|metal|so(?:\.\d+)*|dylib|dll|txt|json|toml|ya?ml|pt|sh)\b"

_SHAPES = (
    rf"(?P<quote>[\"'`])(?:/|[A-Za-z]:{_BACK}){_PART}[\\/][^\"'`]*(?P=quote)",  # quoted, spaces and all
    rf"file:///?(?:{_PART}/)*{_PART}",
    rf"(?<![A-Za-z])[A-Za-z]:(?:/|{_BACK})(?:{_SPACED}(?:/|{_BACK}))*(?:{_PART})?",  # C:\Users\me\x.py
    rf"(?<!\\)\\{{2,4}}\w[\w.-]+{_BACK}\w[\w.$-]+(?:{_BACK}{_PART})*",  # \\server\share\x.py
    rf"\\Users\\(?:{_SPACED}\\)*{_PART}",
    rf"(?:(?<![\w.)\]/])|(?<=-[IL]))~?/(?:home|Users)/(?:{_SPACED}/)?(?:{_PART}/)*(?:{_PART})?",
    r"(?<![\w/])~(?:/[\w.+@-]+)+/?",
    rf"(?:(?<![\w.)\]/:])|(?<=-[IL])|(?<=[A-Za-z]:))/{_PART}(?:/{_PART})+/?",  # absolute, of two parts or more
    rf"(?<=\w)/(?:home|Users|tmp|usr|mnt|nfs|Volumes)(?:/{_PART})+",
    rf"\.\.?(?:/{_PART})+/?",
    rf"(?<![\w.+@~$-])(?:{_PART}(?:/|{_BACK}))+[\w.+-]*?{_SUFFIX}",  # relative, known by its suffix
)
_PATH = re.compile("|".join(_SHAPES))
_URL = re.compile(r"\b(?:https?|ssh|git|s3|gs|ftp)://(?P<host>[^\s/\"'<>)]+)[^\s\"'<>)]*")
_PUBLIC = re.compile(r"(?:[\w-]+\.)*(?:pytorch\.org|github\.com|nvidia\.com|python\.org|apple\.com|intel\.com|aka\.ms)")
_HOME = re.compile(r"(?:[A-Za-z]:)?(?:/|\\\\?)(?:home|Users)(?:/|\\\\?)[^\\/]+", re.IGNORECASE)


def scrub(text: str) -> str:
    """One line of at most 400 characters, paths cut to their last part, this machine's and user's names replaced."""
    line = clean(" ".join(text[:_READ].split()), _roots(), _private_words())
    return line if len(line) <= _LIMIT else line[: _LIMIT - 1] + _HIDDEN


def clean(line: str, roots: Iterable[str], words: Iterable[str]) -> str:
    """The line with paths cut, those under `roots` (folders, which may hold spaces) first, and private words hidden.

    URLs of public projects stay whole, others are hidden. Words are compared without regard to case.
    """
    kept: list[str] = []
    line = line.replace("\0", "")
    line = _URL.sub(lambda m: _keep(m, kept), line)
    for root in roots:
        inside = rf"(?![\w-])(?P<inside>(?:[\\/]{{1,2}}{_PART})*[\\/]?)"
        line = re.sub(re.escape(root) + inside, lambda m: _last(m["inside"]), line)
    line = _PATH.sub(_cut, line)
    for word in words:
        line = re.sub(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", _HIDDEN, line, flags=re.IGNORECASE)
    return re.sub("\0(\\d+)\0", lambda m: kept[int(m[1])], line)


def _keep(match: re.Match[str], kept: list[str]) -> str:
    """Put a public URL aside, where no later step sees it; hide any other."""
    if not _PUBLIC.fullmatch(match["host"]):
        return _HIDDEN
    kept.append(match[0])
    return f"\0{len(kept) - 1}\0"


def _cut(match: re.Match[str]) -> str:
    quote = match["quote"] or ""
    return f"{quote}{_last(match[0].strip(quote) if quote else match[0])}{quote}"


def _last(path: str) -> str:
    """A path's last part; a home folder itself is somebody's name, and is hidden."""
    return re.split(r"[\\/]", _HOME.sub("", path).rstrip("\\/"))[-1] or _HIDDEN


@functools.cache
def _roots() -> tuple[str, ...]:
    """The folders of this user and run, the longest first, so that none is cut inside another."""
    try:
        here = os.getcwd()
    except OSError:
        here = ""
    found = {here, os.path.expanduser("~"), tempfile.gettempdir(), sys.prefix, sys.base_prefix}
    found |= {os.path.realpath(f) for f in found if f} | {f.replace("\\", "\\\\") for f in found if "\\" in f}
    return tuple(sorted((f for f in found if len(f) > 3), key=lambda f: (-len(f), f)))


@functools.cache
def _private_words() -> tuple[str, ...]:
    """The names of this machine, long and short, and of its user; the longest first."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        user = ""
    host = platform.node()
    found = {host, host.partition(".")[0], user, os.path.basename(os.path.expanduser("~"))}
    return tuple(sorted((w for w in found if len(w) > 2 and w.lower() not in _NOBODY), key=lambda w: (-len(w), w)))
