"""Cell ids as people type them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import DEVICES, cells

from amp_matrix.cell_id import CellId, parse
from amp_matrix.precision import Precision
from amp_matrix.survey import Cell, cell_id


@given(cells(), st.sampled_from(["", *DEVICES]))
def test_a_cell_s_id_reads_back(cell: Cell, device: str) -> None:
    written = f"{device}/{cell.id}" if device else cell.id
    read = parse(written)
    assert str(read) == written
    assert (read.probe, read.variant, str(read.precision), read.device) == (
        cell.probe,
        cell.variant,
        cell.precision,
        device,
    )


def test_parts() -> None:
    assert parse("cuda:0/op.softmax[large]@bf16-mixed+te-mxfp8") == CellId(
        "op.softmax", Precision("bf16-mixed", "te-mxfp8"), "large", "cuda:0"
    )
    assert parse("op.softmax@fp32").variant == "base"
    assert cell_id("op.softmax", "base", "fp32") == "op.softmax@fp32"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "softmax@fp32",
        "op.softmax",
        "op.softmax@",
        "op.softmax[]@fp32",
        "op.softmax[base]@fp32",
        "op.softmax[Large]@fp32",
        "op.softmax@fp32 ",
        "op.softmax@fp32\n",
        " op.softmax@fp32",
        "op.softmax@@fp32",
        "op.softmax[a][b]@fp32",
        "CUDA:0/op.softmax@fp32",
        "op.soft max@fp32",
        "op.s٣@fp32",
        "op.softmax@fp32+te-mxfp8",
    ],
)
def test_refusals(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse(text)
