"""The numbers in docs/numerics.md are the code's, and its tables are what tools/calibrate.py prints."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from amp_probe import draw, numerics
from amp_probe.case import Training
from amp_probe.harness import problem, timing, training, update

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")
LIMITS = numerics.LIMITS


def shown() -> Iterator[tuple[str, list[float]]]:
    """Every row of the page's table of numbers: the names in the code, in one string, and the values."""
    section = PAGE.partition("## The numbers")[2].partition("\n## ")[0]
    for _, values, names in re.findall(r"^\| (.*?) \| ([^|a-z]+) \| (`.*) \|$", section, re.MULTILINE):
        yield names, [number(text) for text in values.split(",")]


def number(text: str) -> float:
    base, _, power = text.strip().partition("^")
    return float(base) ** float(power or 1)


def in_code(names: str) -> list[float]:
    """The values of names like `numerics.LIMITS.n_factor`, in one list; a tuple counts as its members."""
    found: list[float] = []
    for name in re.findall(r"`([\w.]+)`", names):
        package = "amp_matrix" if name.startswith("essential.") else "amp_probe"
        module, *attributes = re.findall(r"^(?:harness\.)?\w+|(?<=\.)\w+", name)
        value: object = importlib.import_module(f"{package}.{module}")
        for attribute in attributes:
            value = getattr(value, attribute)
        found += value if isinstance(value, tuple) else [value]  # type: ignore[list-item]
    return found


@pytest.mark.parametrize(("names", "values"), list(shown()), ids=[names for names, _ in shown()])
def test_every_number_of_the_table_is_the_codes(names: str, values: list[float]) -> None:
    assert values == [pytest.approx(value, rel=1e-12) for value in in_code(names)]


def test_no_number_of_the_code_is_left_out() -> None:
    table = " ".join(names for names, _ in shown())
    limits = {f"numerics.LIMITS.{name}" for name in (*LIMITS._fields, "least_n", "least_s", "kept_s")}
    named = {"draw": draw, "harness.training": training, "harness.problem": problem, "harness.update": update}
    for module, source in named.items():
        limits |= {
            f"{module}.{n}"
            for n, v in vars(source).items()
            if n.isupper() and n[0] != "_" and isinstance(v, (int, float, tuple))
        }
    assert limits <= set(re.findall(r"`([\w.]+)`", table))


@pytest.mark.parametrize(
    "sentence",
    [
        f"n > {LIMITS.n_factor:g} max(n_ideal, {LIMITS.least_ideal:g})",
        f"s > {LIMITS.s_factor:g} max(s_ideal, {LIMITS.least_ideal:g})",
        f"n_ideal eps > {LIMITS.ill_conditioned:g}",
        f"n > max({LIMITS.fp32_n:g}, {LIMITS.n_factor:g} n_ideal), the ideal being asked only over {LIMITS.fp32_n:g}",
        f"the limits are n = {LIMITS.kept_n:g} and s = {LIMITS.kept_s:.3g}",
        f"Slices have {LIMITS.slice_size} elements or more",
        f"f is {LIMITS.gradient_floor:g} of the largest rms",
        f"The floor is {LIMITS.slice_floor:g} of the rms",
        f"At steps {', '.join(map(str, training.ANCHORS))} and the last",
        f"after {Training.steps} steps of AdamW",
        f"a GradScaler that starts at {training.INITIAL_SCALE:g}",
        f"a cosine of at least {training.LEAST_COSINE:g}",
        f"{training.RATIO[0]:g} to {training.RATIO[1]:g} times its length",
        f"within {training.FALL * 100:g}% of float64's",
        f"under {problem.NEGLIGIBLE:.0e}".replace("e-06", "e-6"),
        f"is below {timing.EMULATED:g}.",
    ],
)
def test_the_prose_says_the_same_numbers(sentence: str) -> None:
    assert sentence in " ".join(PAGE.split())


def test_the_tables_have_the_form_that_the_calibration_prints() -> None:
    command = [sys.executable, str(ROOT / "tools" / "calibrate.py")]
    command += ["--level", "", "--seeds", "1", "--probe", "op.gelu", "--probe", "op.embedding[long_reduction]"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    heads = [line for line in printed.splitlines() if line.startswith("|") and "|---" not in line]
    for first in ("| precision | tier |", "| level |", "| precision | cosine |", "| cell |"):
        (head,) = [line for line in heads if line.startswith(first)]
        assert head in PAGE
    assert "| bf16-true | essential | 1 | 0 | 3 |" in printed
    assert re.search(
        r"`op\.embedding\[long_reduction\]@bf16-true` \| stress \| inaccurate \| every level \(1\)", printed
    )
