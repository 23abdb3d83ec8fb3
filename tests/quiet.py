"""A run's progress for tests that start runs."""

from __future__ import annotations

from amp_matrix.survey import Cell, Survey


class Quiet:
    """A progress that keeps its warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def started(self, device: str, total: int) -> None: ...
    def cell(self, cell: Cell) -> None: ...
    def finished(self, survey: Survey) -> None: ...
    def warned(self, text: str) -> None:
        self.warnings.append(text)
