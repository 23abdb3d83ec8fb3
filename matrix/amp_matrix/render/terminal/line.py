"""Lines that wrap under their own indent, in a number of terminal columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text


class Line(NamedTuple):
    """A paragraph: text whose first line starts at `indent`, and whose others start at `hang`."""

    text: Text
    indent: int = 0
    hang: int = 2

    def wrapped(self, console: Console, width: int) -> Iterator[Text]:
        """The lines of at most `width` columns; words longer than a line are folded."""
        hang = max(self.indent, self.hang) if width >= 4 * self.hang else 2 * (width >= 8)
        first = min(self.indent, hang)
        room = width - first
        if cell_len(self.text.plain) <= room:
            yield Text(" " * first).append_text(self.text)
            return
        for number, part in enumerate(self.text.wrap(console, width - hang)):
            part.rstrip()
            yield Text(" " * (hang if number else first)).append_text(part)


def said(text: str, indent: int = 0, hang: int | None = None, style: str = "") -> Line:
    """A paragraph of plain words; where it wraps it goes on two columns further in."""
    return Line(Text(text, style=style), indent, indent + 2 if hang is None else hang)


def fit(text: str, size: int, ellipsis: str = "…") -> str:
    """Text padded, or cut with an ellipsis, to a number of terminal columns with one left free."""
    room = size - 1
    if cell_len(text) > room:
        text = set_cell_size(text, max(0, room - len(ellipsis))) + ellipsis
    return set_cell_size(text, size)


def ascii_only(line: Text) -> Text:
    """The line for a terminal that has no more than ASCII."""
    plain_line = line.plain.replace("…", ".").replace("·", ".").encode("ascii", "replace").decode()
    return Text(plain_line, spans=line.spans, style=line.style)
