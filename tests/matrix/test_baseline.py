"""Baseline files: written, read, and refused with every fault."""

from __future__ import annotations

import json

import pytest

from amp_matrix import baseline
from amp_matrix.baseline import BaselineError

IDS = ("cpu/op.gelu@bf16-mixed", "cuda/op.softmax[large]@fp16-true")


def faults(data: bytes) -> list[tuple[str, str]]:
    with pytest.raises(BaselineError) as caught:
        baseline.decode(data, "base.json")
    assert str(caught.value).startswith("base.json: ")
    return [tuple(f) for f in caught.value.faults]


def test_it_reads_what_it_wrote() -> None:
    data = baseline.encode([*reversed(IDS), IDS[0]])
    assert baseline.decode(data, "base.json") == IDS
    assert json.loads(data) == {"format": 1, "cells": list(IDS)}
    assert data.count(b"\n") > len(IDS)
    assert baseline.decode(baseline.encode([]), "base.json") == ()


def test_what_is_wrong_with_the_whole_file_has_no_place() -> None:
    with pytest.raises(BaselineError, match=r"^base\.json: is not JSON: .* at line 1, column 2$"):
        baseline.decode(b"{", "base.json")


@pytest.mark.parametrize(
    ("data", "place", "message"),
    [
        (b"", "$", "is empty"),
        (b"{", "$", "is not JSON"),
        (b"\xff", "$", "is not UTF-8"),
        (b"[" * 100_000, "$", "is nested too deeply"),
        (b"[]", "$", "expected an object"),
        (b'{"format": 2, "cells": 7}', "$.format", "format 2 is newer than this amp-probe reads (1)"),
        (b'{"cells": []}', "$.format", "is missing"),
        (b'{"format": 1}', "$.cells", "is missing"),
        (b'{"format": 1, "cells": [], "cell": 1}', "$.cell", "unknown field; did you mean 'cells'?"),
        (b'{"format": 1, "cells": "cpu/op.gelu@fp32"}', "$.cells", "expected a list"),
        (b'{"format": 1, "cells": [1]}', "$.cells[0]", "expected text"),
        (b'{"format": 1, "cells": ["op.gelu@fp32"]}', "$.cells[0]", "names no kind of device"),
        (b'{"format": 1, "cells": ["cuda:0/op.gelu@fp32"]}', "$.cells[0]", "did you mean 'cuda'?"),
        (b'{"format": 1, "cells": ["cpu/gelu"]}', "$.cells[0]", "is not a cell id"),
        (b'{"format": 1, "cells": ["cpu/cpu/op.gelu@fp32"]}', "$.cells[0]", "is not a cell id"),
    ],
)
def test_what_is_refused(data: bytes, place: str, message: str) -> None:
    ((where, what),) = faults(data)
    assert where == place
    assert message in what


def test_every_fault_is_said() -> None:
    document = {"cells": ["x", IDS[0], 3, "cpu/y"], "kind": "baseline"}
    found = faults(json.dumps(document).encode())
    assert {place for place, _ in found} == {"$.format", "$.kind", "$.cells[0]", "$.cells[2]", "$.cells[3]"}


def test_what_is_too_large_is_refused() -> None:
    ((place, message),) = faults(b" " * (64 * 2**20 + 1))
    assert (place, message) == ("$", "is larger than 64 MiB")
