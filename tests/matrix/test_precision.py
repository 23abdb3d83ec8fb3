"""Names of precisions, and what follows from one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import precisions

from amp_matrix.precision import COMPUTES, RECIPE_HOSTS, RECIPES, Precision, nearest, parse


@given(precisions())
def test_a_name_reads_back(name: str) -> None:
    assert str(parse(name)) == name


@given(st.text(max_size=20))
def test_any_other_name_is_refused_with_a_hint(name: str) -> None:
    try:
        assert str(parse(name)) == name
    except ValueError as error:
        refusal = str(error)
    else:
        return
    assert refusal


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("bf16-mixd", "did you mean 'bf16-mixed'?"),
        ("bfloat16", "unknown compute precision 'bfloat16'"),
        ("bf16-mixed+te-mxfp9", "did you mean 'te-mxfp8'?"),
        ("bf16-mixed+", "write 'bf16-mixed'"),
        ("bf16-mixed+none", "write 'bf16-mixed'"),
        ("fp32+te-mxfp8", "stands beside bf16-mixed, bf16-true, fp16-mixed, not fp32"),
        ("", "unknown compute precision ''"),
        ("BF16-mixed", "unknown compute precision"),
        ("bf16-mixed+te-mxfp8+te-mxfp8", "unknown FP8 recipe"),
    ],
)
def test_refusals(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(hint)):
        parse(name)


def test_recipes_stand_beside_their_hosts_alone() -> None:
    for compute in COMPUTES:
        for recipe in RECIPES[1:]:
            if compute in RECIPE_HOSTS:
                assert parse(f"{compute}+{recipe}") == Precision(compute, recipe)
            else:
                with pytest.raises(ValueError, match="stands beside"):
                    parse(f"{compute}+{recipe}")


@pytest.mark.parametrize(
    ("name", "family", "dtype", "storage", "mixed", "eps"),
    [
        ("fp32", "fp32", "float32", "float32", False, 2.0**-23),
        ("tf32", "tf32", "float32", "float32", False, 2.0**-10),
        ("bf16-mixed", "bf16", "bfloat16", "float32", True, 2.0**-7),
        ("fp16-mixed", "fp16", "float16", "float32", True, 2.0**-10),
        ("bf16-true", "bf16", "bfloat16", "bfloat16", False, 2.0**-7),
        ("fp16-true+none", "fp16", "float16", "float16", False, 2.0**-10),
    ],
)
def test_what_follows(name: str, family: str, dtype: str, storage: str, mixed: bool, eps: float) -> None:
    precision = parse(name.removesuffix("+none"))
    assert (precision.family, precision.dtype, precision.storage) == (family, dtype, storage)
    assert (precision.mixed, precision.eps) == (mixed, eps)


def test_eps_is_torch_s() -> None:
    torch = pytest.importorskip("torch")
    for name in ("fp32", "bf16-mixed", "fp16-mixed"):
        assert parse(name).eps == torch.finfo(getattr(torch, parse(name).dtype)).eps


def test_nearest_names_all_where_nothing_is_near() -> None:
    assert nearest("zzz", ("speed", "memory")) == "known: speed, memory"
