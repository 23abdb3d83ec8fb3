"""How a simulated survey is printed: what comes out of each operator under autocast, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_matrix.render.words import plain
from amp_matrix.survey import Cell, Stage, Survey

INPUTS = ("float32", "low", "both")
_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_LABEL, _COLUMN = 34, 9


def table(survey: Survey) -> str:
    """The dtype that comes out of each operator, by precision and by what goes in; then what autocast itself says."""
    return "".join(f"{line.rstrip()}\n" for line in _lines(survey))


def _lines(survey: Survey) -> Iterator[str]:
    identity, recorded = survey.environment.identity, survey.environment.recorded
    torch, where = plain(identity.get("torch", "")), plain(recorded.get("simulated", ""))
    yield f"{survey.device}: autocast's policy, {where} by torch {torch}. No device ran it."
    yield "What comes out of an operator that is given float32, the low dtype, or both:"
    yield ""
    columns = [(cell, inputs) for cell in survey.cells for inputs in INPUTS]
    yield _row("", [plain(cell.precision).partition("-")[0] for cell, _ in columns])
    yield _row("", [inputs for _, inputs in columns])
    for name in _operators(survey.cells):
        yield _row(plain(name), [_output(cell, inputs, name) for cell, inputs in columns])
    yield ""
    yield "refused: autocast refuses it by design; unknown: fake tensors cannot tell."
    for cell in survey.cells:
        yield from _remarks(cell)


def _operators(cells: Sequence[Cell]) -> list[str]:
    found = {name: None for cell in cells for inputs in INPUTS for name in _stage(cell, inputs).dtypes}
    return sorted(found)


def _output(cell: Cell, inputs: str, name: str) -> str:
    dtype = _stage(cell, inputs).dtypes.get(name, "")
    return _SHORT.get(dtype, plain(dtype))


def _remarks(cell: Cell) -> Iterator[str]:
    """What torch.autocast does here, whether the worker lived, and how many operators autocast knows."""
    says = next((stage for stage in cell.outcome.stages if stage.reason), None)
    known = _stage(cell, "registrations").numbers.get("registered")
    parts = [says.reason if says else "torch.autocast turns on here"]
    parts += [f"{known:.0f} ATen operators are registered for it"] if known is not None else []
    yield f"{plain(cell.precision)}: {plain('; '.join(parts))}"


def _stage(cell: Cell, name: str) -> Stage:
    return next((s for s in cell.outcome.stages if s.name == name), Stage(name=name, status=None))


def _row(label: str, cells: Sequence[str]) -> str:
    return f"{label:<{_LABEL}}" + "".join(f"{text:<{_COLUMN}}" for text in cells)
