"""Where a command's words go: data to stdout, everything else to stderr, files in one piece."""

from __future__ import annotations

import io
import os
import shutil
import stat
import sys
import tempfile
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from amp_matrix.render.words import plain
from amp_probe.cli.refused import Refused

if TYPE_CHECKING:
    from rich.console import RenderableType

COLORS = ("auto", "always", "never")
_PIPE_WIDTH = 120
_LONGEST = 4000
_color = "auto"


def set_color(when: str) -> None:
    """Choose whether text is coloured: `auto`, `always` or `never`."""
    global _color
    _color = when


def colored(stream: TextIO) -> bool:
    """Whether text on this stream is coloured: as --color says, else on a terminal that can, without NO_COLOR."""
    if _color != "auto":
        return _color == "always"
    return not os.environ.get("NO_COLOR") and is_terminal(stream)


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is a terminal that moves its cursor."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def text(words: str) -> None:
    """Write text to stdout, in its encoding; what it cannot say becomes `?`, and terminal sequences are left out."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    data(visible(words).encode(encoding, "replace"))


def data(content: bytes) -> None:
    """Write bytes to stdout. A closed pipe is quiet; a full disk raises Refused."""
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        silence_stdout()
    except OSError as error:
        silence_stdout()
        raise Refused(f"standard output: {error.strerror or error}") from error


def rich(renderable: RenderableType) -> None:
    """Write a rich renderable to stdout, as wide as the terminal, coloured where colours are wanted."""
    from rich.console import Console

    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    page = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace", newline="\n")
    console = Console(
        file=page,
        width=shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns,
        force_terminal=colored(sys.stdout),
        color_system=("auto" if is_terminal(sys.stdout) else "standard") if colored(sys.stdout) else None,
        highlight=False,
    )
    console.print(renderable)
    page.seek(0)
    data(page.buffer.read())


def wrapped(words: str) -> str:
    """Text for stdout with its lines broken to a terminal's width and hung in; off a terminal as it is."""
    if not is_terminal(sys.stdout):
        return words
    fold = textwrap.TextWrapper(_width(), subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "".join(f"{line}\n" for text in words.splitlines() for line in fold.wrap(text) or [""])


def _width() -> int:
    return max(shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns, 20)


def note(words: str) -> None:
    """Tell the user something on stderr; a stderr that takes nothing is no reason to stop."""
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    with suppress(OSError, ValueError):
        print(visible(words).encode(encoding, "replace").decode(encoding), file=sys.stderr, flush=True)


def visible(words: str) -> str:
    """Text whose lines hold no control characters: some of it was read from documents that others wrote."""
    return "\n".join(line if line.isprintable() else plain(line, _LONGEST) for line in words.split("\n"))


def warn(words: str) -> None:
    """Tell the user of something wrong that does not stop the command."""
    note(f"warning: {words}")


def write_file(path: str, content: bytes) -> None:
    """Write a file in one piece: it has its old content or the new, never a part. Raises Refused."""
    try:
        if _special(path):
            with open(path, "wb") as sink:
                sink.write(content)
            return
        _replace(Path(os.path.realpath(path)), content)
    except OSError as error:
        raise Refused(f"{path}: cannot write: {error.strerror or error}") from error


def check_writable(path: str) -> str:
    """What keeps a file from being written, before any work is done for it; "" where nothing does."""
    if not path:
        return "is empty; write a file's name"
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            return f"{path} is a folder; write a file's name"
        if _special(path):
            return ""
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name[:50]}."):
            return ""
    except (OSError, ValueError) as error:
        return f"cannot write {path}: {getattr(error, 'strerror', None) or error}"


def open_streams() -> None:
    """Give the standard streams that came closed a place: no file opened later may become stdout by its number."""
    for number in (0, 1, 2):
        with suppress(OSError):
            _occupy(number)
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()


def close_stdout() -> None:
    """Flush what is left, so that a closed pipe is not reported when Python exits."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            _redirect(stream)


def silence_stdout() -> None:
    """Send all further output nowhere: its reader has gone."""
    _redirect(sys.stdout)


def _redirect(stream: TextIO) -> None:
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def _occupy(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def _special(path: str) -> bool:
    with suppress(FileNotFoundError):
        return not stat.S_ISREG(os.stat(path).st_mode)
    return False


def _replace(target: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:50]}.")
    try:
        with os.fdopen(handle, "wb") as sink:
            sink.write(content)
            sink.flush()
            os.fsync(sink.fileno())
        os.chmod(name, _mode(target))
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _mode(target: Path) -> int:
    with suppress(FileNotFoundError):
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
