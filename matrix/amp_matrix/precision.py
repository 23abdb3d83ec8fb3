"""The two axes of precision: how arithmetic is done, and which FP8 recipe stands beside it."""

from __future__ import annotations

import difflib

import msgspec

COMPUTES = ("fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16-true", "fp16-true")
"""Every compute precision, the safest first."""

RECIPES = (
    "none",
    "torch-tensorwise",
    "torch-rowwise",
    "torchao-tensorwise",
    "torchao-rowwise",
    "torchao-mxfp8",
    "te-delayed",
    "te-current",
    "te-mxfp8",
    "te-block",
    "te-nvfp4",
)
RECIPE_HOSTS = ("bf16-mixed", "bf16-true", "fp16-mixed")
"""The compute precisions that an FP8 recipe may stand beside."""

_EPS = {"fp32": 2.0**-23, "tf32": 2.0**-10, "bf16": 2.0**-7, "fp16": 2.0**-10}
_DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class Precision(msgspec.Struct, frozen=True):
    """One way of doing arithmetic: a compute precision and an FP8 recipe, each from its closed list."""

    compute: str
    recipe: str = "none"

    def __post_init__(self) -> None:
        _known(self.compute, COMPUTES, "compute precision")
        _known(self.recipe, RECIPES, "FP8 recipe")
        if self.recipe != "none" and self.compute not in RECIPE_HOSTS:
            raise ValueError(
                f"the FP8 recipe {self.recipe} stands beside {', '.join(RECIPE_HOSTS)}, not {self.compute}"
            )

    def __str__(self) -> str:
        return self.compute if self.recipe == "none" else f"{self.compute}+{self.recipe}"

    @property
    def family(self) -> str:
        """`fp32`, `tf32`, `bf16` or `fp16`."""
        return self.compute.partition("-")[0]

    @property
    def dtype(self) -> str:
        """The torch dtype's name that arithmetic is asked for in: `bfloat16` for `bf16-mixed`."""
        return _DTYPES[self.family]

    @property
    def storage(self) -> str:
        """The torch dtype's name of parameters and inputs: `float32` but for `*-true`."""
        return self.dtype if self.compute.endswith("-true") else "float32"

    @property
    def mixed(self) -> bool:
        """Whether it is entered through torch.autocast over float32 parameters."""
        return self.compute.endswith("-mixed")

    @property
    def eps(self) -> float:
        """The distance from 1.0 to the next number (torch.finfo's eps; TF32 has 10 mantissa bits)."""
        return _EPS[self.family]


def parse(text: str) -> Precision:
    """Read `compute` or `compute+recipe`; ValueError names the nearest spelling of what it does not know."""
    compute, plus, recipe = text.partition("+")
    if plus and recipe in ("", "none"):
        raise ValueError(f"{text!r}: write {compute!r} where there is no FP8 recipe")
    return Precision(compute, recipe or "none")


def nearest(word: str, known: tuple[str, ...]) -> str:
    """A hint for a word outside a closed set: the nearest known spelling, else all of them."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


def _known(word: str, known: tuple[str, ...], what: str) -> None:
    if word not in known:
        raise ValueError(f"unknown {what} {word!r}; {nearest(word, known)}")
