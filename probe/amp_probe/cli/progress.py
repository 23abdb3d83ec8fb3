"""How a run is told on stderr: a bar on a terminal, a line a device elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from amp_matrix.render.words import counts
from amp_matrix.survey import Cell, Survey
from amp_probe.cli import output

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class Lines:
    """A line when a device begins, and one when it is done. `cells` counts those that came."""

    cells = 0

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def started(self, device: str, total: int) -> None:
        """Say how many cells are to run."""
        output.note(f"{device}: {total} cells to run")

    def cell(self, cell: Cell) -> None:
        """Count it and say nothing: a line a cell would drown the rest."""
        self.cells += 1

    def finished(self, survey: Survey) -> None:
        """Say how the cells came out."""
        output.note(f"{survey.device}: {counts(list(survey.cells))}, in {survey.seconds:.1f} s")

    def warned(self, text: str) -> None:
        """Say what went wrong beside the cells."""
        output.warn(text)


class Bar(Lines):
    """A bar a device, with the count of cells that are not ok."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True, no_color=not output.colored(sys.stderr), highlight=False)
        self._bars: RichProgress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[last]}", markup=False),
            console=console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._shown = 0.0

    def __enter__(self) -> Bar:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(OSError):
            self._bars.stop()

    def started(self, device: str, total: int) -> None:
        """Begin a device's bar."""
        self._task = self._bars.add_task(device, total=total, last="")

    def cell(self, cell: Cell) -> None:
        """Move the bar by one cell."""
        super().cell(cell)
        if self._task is None:
            return
        now = time.monotonic()
        fresh = now - self._shown > 0.1  # a name a cell would cost more than the cell
        self._shown = now if fresh else self._shown
        self._bars.advance(self._task)
        if fresh:
            self._bars.update(self._task, last=cell.id)

    def finished(self, survey: Survey) -> None:
        """End a device's bar, and say how the cells came out."""
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None
        self._print(f"{survey.device}: {counts(list(survey.cells))}, in {survey.seconds:.1f} s")

    def warned(self, text: str) -> None:
        """Say what went wrong beside the cells, above the bar."""
        self._print(f"warning: {text}")

    def _print(self, text: str) -> None:
        with suppress(OSError):  # a terminal that hung up is no reason to lose the run
            self._bars.console.print(output.visible(text), markup=False, soft_wrap=True)


def on_stderr() -> Lines:
    """A bar where stderr is a terminal that moves its cursor, else lines."""
    return Bar() if output.is_terminal(sys.stderr) else Lines()
