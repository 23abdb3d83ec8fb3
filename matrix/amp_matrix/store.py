"""Where surveys are kept: `surveys/<identity>/<id>.json` under one folder, every write whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from amp_matrix import codec
from amp_matrix.codec import LIMIT, DocumentError, Fault
from amp_matrix.survey import Survey

_LOCK_SECONDS = 60.0
T = TypeVar("T")


class StoreError(Exception):
    """The store cannot be written or read; the message says why in one line."""


class PathError(Exception):
    """A path or URL that leads to nothing; the message says why in one line."""


class Loaded(msgspec.Struct, frozen=True):
    """What could be read, and of each file that could not, why."""

    surveys: tuple[Survey, ...] = ()
    damaged: tuple[DocumentError, ...] = ()


class Store:
    """A folder of surveys. A URL (extra `remote`) can be read, not written."""

    def __init__(self, root: str | Path) -> None:
        self._url = str(root).rstrip("/") if isinstance(root, str) and is_url(root) else ""
        self.root = Path(root)

    @classmethod
    def default(cls) -> Store:
        """The store that AMP_PROBE_STORE names, else the one in the user's data folder."""
        import platformdirs

        named = os.environ.get("AMP_PROBE_STORE", "")
        if is_url(named):
            return cls(named)
        return cls(Path(named).expanduser() if named else platformdirs.user_data_path("amp-probe", appauthor=False))

    @property
    def journals(self) -> Path:
        """The folder of the journals of unfinished runs."""
        return self.root / "journals"

    def add(self, survey: Survey) -> str:
        """Keep a survey, and give its id. StoreError where it cannot be kept whole: then nothing is left of it."""
        from amp_matrix.environment import identity_key

        if self._url:
            raise StoreError(f"{self._url}: a remote store can only be read")
        data = _readable(survey)
        name = codec.survey_id(survey)
        folder = self.root / "surveys" / identity_key(survey.environment)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.root / "surveys.lock"):
                _write_whole(folder / f"{name}.json", data)
        except OSError as error:
            raise StoreError(f"{error.filename or folder}: {why(error)}") from error
        return name

    def load(self, identity: str | None = None, *, brief: bool = False) -> Loaded:
        """The surveys of one identity (environment.identity_key), or all, by file name; none where there is no store.

        `brief` reads only what `choose` looks at (module brief), many times faster. StoreError where the folder is
        there and cannot be listed.
        """
        if self._url:
            return self._load_remote("/".join(filter(None, [self._url, "surveys", identity])))
        top = self.root / "surveys"
        try:
            folders = [top / identity] if identity else [p for p in _listed(top) if p.is_dir()]
            paths = [path for folder in folders for path in _listed(folder) if path.suffix == ".json"]
        except OSError as error:
            raise StoreError(f"{error.filename or top}: {why(error)}") from error
        decode = _brief() if brief else codec.decode_named
        return _gather(paths, lambda path: (decode(_content(path), str(path), path.stem),))

    def _load_remote(self, url: str) -> Loaded:
        try:
            return _read_url(url, missing_ok=True)
        except PathError as error:
            raise StoreError(str(error)) from None


def _brief() -> Callable[[bytes, str, str], Survey]:
    from amp_matrix import brief

    return brief.decode


def is_url(text: str) -> bool:
    """Whether fsspec is to read it."""
    return "://" in text


def why(error: OSError) -> str:
    """What the system says of an error, in one line."""
    return (error.strerror or str(error) or type(error).__name__).strip().partition("\n")[0]


def read_path(path: str) -> Loaded:
    """The surveys of a file, of every *.json under a folder, or of either at a URL; PathError where nothing is."""
    if is_url(path):
        return _read_url(path)
    if os.path.isdir(path):
        unlisted: list[DocumentError] = []
        paths = sorted(_walk(path, lambda e: unlisted.append(_damaged(str(e.filename or path), why(e)))))
        found = _gather(paths, _read_file)
        return Loaded(found.surveys, (*unlisted, *found.damaged))
    try:
        os.lstat(path)
    except (OSError, ValueError) as error:
        reason = why(error) if isinstance(error, OSError) else "is not a path"
        raise PathError(f"{path}: {reason}") from None
    return _gather([Path(path)], _read_file)


def _readable(survey: Survey) -> bytes:
    """The survey's document, once it has been read back: what no reader takes must not be stored."""
    try:
        data = codec.encode(survey)
        codec.decode(data, "this survey")
    except (DocumentError, ValueError, TypeError, NotImplementedError) as error:
        line = str(error).partition("\n")[0]
        raise StoreError(f"cannot be stored: {line}") from error
    return data


def _read_file(path: Path) -> tuple[Survey, ...]:
    return codec.decode(_content(path), str(path))


def _gather(places: Iterable[T], read: Callable[[T], tuple[Survey, ...]]) -> Loaded:
    surveys: list[Survey] = []
    damaged: list[DocumentError] = []
    for place in places:
        try:
            surveys.extend(read(place))
        except DocumentError as error:
            damaged.append(error)
    return Loaded(tuple(surveys), tuple(damaged))


def _damaged(source: str, reason: str) -> DocumentError:
    return DocumentError(source, [Fault("$", reason)])


def _listed(folder: Path) -> list[Path]:
    """What is in a folder, in order; nothing where there is no such folder."""
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _walk(top: str, complain: Callable[[OSError], object]) -> Iterator[Path]:
    for folder, _, files in os.walk(top, onerror=complain):
        yield from (Path(folder, file) for file in files if file.endswith(".json"))


def _content(path: Path) -> bytes:
    """A regular file's bytes, at most LIMIT. Never waits on a pipe or reads a device; DocumentError for those."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with open(handle, "rb") as file:
            state = os.fstat(handle)
            if not stat.S_ISREG(state.st_mode):
                raise _damaged(str(path), "is not a regular file")
            if state.st_size > LIMIT:
                raise _damaged(str(path), f"is larger than {LIMIT // 2**20} MiB")
            return file.read(LIMIT + 1)
    except OSError as error:
        raise _damaged(str(path), why(error)) from None


def _write_whole(path: Path, data: bytes) -> None:
    """Put the data at the path in one step that outlives a power cut; on any failure the folder is as it was."""
    draft = path.with_name(f".{path.stem}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename outlive a power cut, where the system lets a folder be synced."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the store's lock; OSError where another process keeps it for too long."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=_LOCK_SECONDS)
    try:
        lock.acquire()
    except Timeout:
        message = f"another process has held this lock for {_LOCK_SECONDS:.0f} s"
        raise OSError(errno.EAGAIN, message, str(path)) from None
    except NotImplementedError as error:
        raise OSError(errno.ENOLCK, str(error), str(path)) from None
    try:
        yield
    finally:
        lock.release()


def _read_url(url: str, *, missing_ok: bool = False) -> Loaded:
    """The documents at an fsspec URL. Its backends raise whatever they like, so every exception is the URL's fault."""
    try:
        fsspec = importlib.import_module("fsspec.core")
    except ImportError:
        raise PathError(f"{url}: reading URLs needs fsspec; pip install 'amp-probe[remote]'") from None
    try:
        files, top = fsspec.url_to_fs(url)
        names = _remote_names(files, top)
    except Exception as error:  # noqa: BLE001
        raise PathError(f"{url}: {_line(error)}") from None
    if names is None and not missing_ok:
        raise PathError(f"{url}: nothing is there")
    wanted = [name for name in names or () if name == top or name.endswith(".json")]
    return _gather(wanted, lambda name: codec.decode(_remote_content(files, name), files.unstrip_protocol(name)))


def _remote_names(files: Any, top: str) -> list[str] | None:
    """The files at or under a remote path; None where there is nothing."""
    if files.isdir(top):
        return sorted(files.find(top))
    return [top] if files.exists(top) else None


def _remote_content(files: Any, name: str) -> bytes:
    """At most LIMIT bytes and one of a remote file."""
    try:
        with files.open(name, "rb") as file:
            return bytes(file.read(LIMIT + 1))
    except Exception as error:  # noqa: BLE001
        raise _damaged(files.unstrip_protocol(name), _line(error)) from None


def _line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
