"""The kinds of device that torch names, and what people write instead of them."""

from __future__ import annotations

from amp_matrix.precision import nearest

KINDS = ("cpu", "cuda", "mps", "xpu")

_MEANT = {
    **dict.fromkeys(("gpu", "nvidia", "hip", "rocm", "amd"), "cuda"),
    **dict.fromkeys(("metal", "apple", "mac"), "mps"),
    "intel": "xpu",
}


def hint(word: str) -> str:
    """The kind that a word outside KINDS may mean, as a question; else all of them."""
    bare = word.partition(":")[0].lower()
    meant = _MEANT.get(bare, bare if bare in KINDS else "")
    return f"did you mean {meant!r}?" if meant else nearest(bare, KINDS)
