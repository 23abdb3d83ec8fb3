"""What `choose` reads of a stored survey is what everyone else reads of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from evidence import NOW, cell, failing, survey, timed, working

from amp_matrix import brief, codec
from amp_matrix.codec import DocumentError
from amp_matrix.decide import decide
from amp_matrix.matrix import select
from amp_matrix.store import Store
from amp_matrix.survey import Stage, Status, Survey, TensorError

HEAVY = cell(
    "op.softmax@bf16-mixed",
    Stage(
        "infer",
        Status.INACCURATE,
        reason="off",
        code="limit",
        dtypes={"out": "bfloat16"},
        errors=(TensorError("out", "bfloat16", n=float("nan"), n_limit=1.5),),
        numbers={"x": float("inf")},
        curves={"loss": (1.0, float("nan"))},
    ),
)


def whole() -> Survey:
    cells = working() | {
        c.id: c for c in (HEAVY, failing("op.gelu@tf32", Status.NOT_RUN), timed("speed.infer@tf32", 1, 2))
    }
    return survey(*cells.values())


def named(data: bytes) -> tuple[bytes, str, str]:
    return data, "x.json", hashlib.sha256(data).hexdigest()


def test_it_decides_as_the_whole_survey_does() -> None:
    full, short = whole(), brief.decode(*named(codec.encode(whole())))
    plans = [
        decide(select([s], NOW.identity), NOW, device="cpu", task=task)
        for s in (full, short)
        for task in ("train", "infer")
    ]  # type: ignore[arg-type]
    assert plans[0].to_json() == plans[2].to_json()
    assert plans[1].to_json() == plans[3].to_json()
    assert plans[0].precision == "bf16-true"


def test_its_id_is_the_stored_ones() -> None:
    full = whole()
    assert codec.survey_id(brief.decode(*named(codec.encode(full)))) == codec.survey_id(full)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"precision":"tf32"', b'"precision":"tf23"'),
        (b'"probe":"op.mse"', b'"probe":"op mse"'),
        (b'"started":"2026-01-31', b'"started":"2026-02-31'),
        (b'"status":"ok"', b'"status":"fine"'),
        (b'"device":"cpu"', b'"device":"cup"'),
        (b'"format":1', b'"format":2'),
        (b'"suite":', b'"suit":'),
        (b'{"cells"', b'["cells"'),
    ],
)
def test_what_is_wrong_with_what_it_reads_is_refused(old: bytes, new: bytes) -> None:
    data = codec.encode(whole())
    assert old in data
    with pytest.raises(DocumentError) as caught:
        brief.decode(*named(data.replace(old, new)))
    assert caught.value.faults


def test_what_is_not_what_was_stored_is_refused() -> None:
    data = codec.encode(whole())
    with pytest.raises(DocumentError, match="SHA-256"):
        brief.decode(data, "x.json", "0" * 64)
    with pytest.raises(DocumentError):
        brief.decode(data[:-100], "x.json", named(data)[2])


def test_a_store_gives_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    name = store.add(whole())
    (found,) = store.load(brief=True).surveys
    assert codec.survey_id(found) == name
    slow = msgspec.structs.asdict(found.cells[0].outcome)
    assert slow["status"] == whole().cells[0].outcome.status
