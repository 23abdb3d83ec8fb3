"""What failed and why, one line a finding: cells that differ in their precision alone are one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from amp_matrix.render.grid import precision_order
from amp_matrix.render.words import LOOKS, plain
from amp_matrix.survey import Cell, cell_id

_LONGEST = 160
_DTYPES = re.compile(r"(?:c10::|torch\.)?\b(?:BFloat16|Half|b?float16|bf16|fp16)\b")


@dataclass(frozen=True)
class Finding:
    """Cells of one probe and variant that came out alike in some precisions."""

    cells: tuple[Cell, ...]

    @property
    def id(self) -> str:
        """`op.softmax[large]@bf16-mixed, fp16-mixed`."""
        first = self.cells[0]
        return plain(cell_id(first.probe, first.variant, ", ".join(cell.precision for cell in self.cells)))

    @property
    def why(self) -> str:
        """`inaccurate in backward: grad table: 390 eps off, limit 1.5`; of several precisions the first's."""
        outcome = self.cells[0].outcome
        where = f" in {plain(outcome.stage)}" if outcome.stage else ""
        return ": ".join(filter(None, (f"{LOOKS[outcome.status].word}{where}", plain(outcome.reason, _LONGEST))))


def grouped(cells: Iterable[Cell]) -> list[Finding]:
    """The findings of some failing cells, in the order of their first; reasons may differ in the name of a dtype."""
    groups: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        outcome = cell.outcome
        why = outcome.status, outcome.stage, _DTYPES.sub("", outcome.reason)
        groups.setdefault((cell.probe, cell.variant, cell.tier, *why), []).append(cell)
    return [Finding(tuple(sorted(same, key=lambda c: precision_order(c.precision)))) for same in groups.values()]
