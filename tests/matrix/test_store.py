"""The store: nothing is lost, half-written or deleted, and nothing in it can stop a reader."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from amp_matrix import codec
from amp_matrix.environment import identity_key
from amp_matrix.store import Loaded, PathError, Store, StoreError, read_path
from amp_matrix.survey import Cell, Environment, Stage, Survey, conclude

WRITER = """
import sys, msgspec
from amp_matrix import codec
from amp_matrix.store import Store
(survey,) = codec.decode(sys.stdin.buffer.read(), "stdin")
for n in range(5):
    Store(sys.argv[1]).add(msgspec.structs.replace(survey, tool=f"{sys.argv[2]}.{n % 4}"))
"""
SMALL_DISK = """
import resource, sys
from amp_matrix import codec
from amp_matrix.store import Store, StoreError
(survey,) = codec.decode(sys.stdin.buffer.read(), "stdin")
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    Store(sys.argv[1]).add(survey)
except StoreError as error:
    print(error)
"""
POSIX = pytest.mark.skipif(os.name != "posix", reason="needs POSIX files")


def survey(tool: str = "0.1.0", device: str = "cpu") -> Survey:
    cell = Cell("op.softmax", "fp32", "stress", 1, conclude([Stage(name="forward")]))
    return Survey(
        tool=tool,
        device=device,
        suite="core",
        started="2026-01-31T08:00:00Z",
        seconds=1.0,
        environment=Environment(identity={"device": device}),
        cells=(cell,),
    )


def tools(loaded: Loaded) -> list[str]:
    return sorted(s.tool for s in loaded.surveys)


def said(loaded: Loaded) -> dict[str, str]:
    """What is said of each damaged file, by its name."""
    return {Path(d.source).name: d.faults[0].message for d in loaded.damaged}


def files(root: Path) -> list[str]:
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if not p.is_dir())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def folder(store: Store) -> Path:
    """The folder of the identity that `survey()` has, with one survey in it."""
    store.add(survey())
    return store.root / "surveys" / identity_key(survey().environment)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that an unprivileged user can reach, unlike tmp_path."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.fixture
def nobody(open_folder: Path) -> Iterator[Path]:
    """An open folder, and this process without root's privileges over files."""
    if os.name != "posix" or os.geteuid() != 0:
        yield open_folder
        return
    os.seteuid(65534)
    try:
        yield open_folder
    finally:
        os.seteuid(0)


def test_what_is_added_is_loaded(store: Store) -> None:
    one, two = survey(), survey(device="mps")
    name = store.add(one)
    store.add(two)
    assert name == codec.survey_id(one)
    assert (store.root / "surveys" / identity_key(one.environment) / f"{name}.json").read_bytes() == codec.encode(one)
    assert {s.device for s in store.load().surveys} == {"cpu", "mps"}
    assert store.load(identity_key(two.environment)) == Loaded((two,))
    assert store.load("0" * 16) == Loaded()


def test_adding_twice_keeps_one(store: Store) -> None:
    assert store.add(survey()) == store.add(survey())
    assert len(store.load().surveys) == 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"started": "yesterday"}, "$.started: 'yesterday' is not a UTC time"),
        ({"device": "gpu"}, "$.device: 'gpu' is not a device"),
        ({"seconds": "long"}, "$.seconds"),
        ({"suite": object()}, "object"),
    ],
)
def test_what_no_reader_takes_is_not_stored(store: Store, changes: dict[str, object], expected: str) -> None:
    with pytest.raises(StoreError, match=re.escape(expected)) as caught:
        store.add(msgspec.structs.replace(survey(), **changes))
    assert "\n" not in str(caught.value)
    assert not store.root.exists()


def test_no_store_yet(store: Store) -> None:
    assert store.load() == Loaded()
    assert not store.root.exists()


def test_the_default_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMP_PROBE_STORE", str(tmp_path / "mine"))
    assert Store.default().root == tmp_path / "mine"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("AMP_PROBE_STORE", "~/surveys")
    assert Store.default().root == tmp_path / "surveys"
    monkeypatch.delenv("AMP_PROBE_STORE")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert Store.default().root.name == "amp-probe"
    assert Store.default().journals == Store.default().root / "journals"


def test_sixteen_writers_lose_nothing(store: Store) -> None:
    data = codec.encode(survey())
    command = [sys.executable, "-c", WRITER, str(store.root)]
    writers = [subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE) for n in range(16)]
    for writer in writers:
        assert writer.stdin
        writer.stdin.write(data)
        writer.stdin.close()
    assert [writer.wait(120) for writer in writers] == [0] * 16
    loaded = store.load()
    assert tools(loaded) == sorted(f"{n}.{m}" for n in range(16) for m in range(4))
    assert not loaded.damaged
    assert [f for f in files(store.root) if not f.endswith(".json")] in ([], ["surveys.lock"])


def test_a_writer_that_is_killed_leaves_nothing_that_counts(store: Store, folder: Path) -> None:
    script = "import os; os.fsync = lambda handle: os.kill(os.getpid(), 9)\n" + WRITER
    ran = subprocess.run([sys.executable, "-c", script, str(store.root), "x"], input=codec.encode(survey()))
    assert ran.returncode == -9
    assert tools(store.load()) == ["0.1.0"]
    assert not store.load().damaged
    store.add(survey("0.2.0"))
    assert tools(store.load()) == ["0.1.0", "0.2.0"]


def test_damaged_files_are_reported_skipped_and_left(store: Store, folder: Path) -> None:
    good = codec.encode(survey("0.2.0"))
    damaged = {
        "half.json": good[: len(good) // 2],
        "empty.json": b"",
        "binary.json": b"\xff\xfe\x00",
        f"{'0' * 64}.json": good,
        "newer.json": good.replace(b'"format":1', b'"format":2'),
        "wrong.json": good.replace(b'"fp32"', b'"fp33"'),
        "both.json": codec.encode_matrix([survey("1"), survey("2")]),
    }
    for name, data in damaged.items():
        (folder / name).write_bytes(data)
    (folder / "notes.txt").write_bytes(b"not ours")
    before = files(store.root)
    loaded = store.load()
    assert tools(loaded) == ["0.1.0"]
    messages = said(loaded)
    assert set(messages) == set(damaged)
    assert messages["empty.json"] == "is empty"
    assert "not the survey that the file's name says" in messages[f"{'0' * 64}.json"]
    assert "newer than this amp-probe reads" in messages["newer.json"]
    assert "did you mean 'fp32'?" in messages["wrong.json"]
    assert files(store.root) == before
    assert all((folder / name).read_bytes() == data for name, data in damaged.items())


def test_a_survey_that_was_edited_is_damaged(store: Store, folder: Path) -> None:
    (file,) = folder.glob("*.json")
    file.write_bytes(file.read_bytes().replace(b'"stress"', b'"essential"'))
    assert not store.load().surveys
    assert "SHA-256 differ" in said(store.load())[file.name]
    store.add(survey())
    assert tools(store.load()) == ["0.1.0"]


@POSIX
def test_odd_files_neither_hang_nor_stop_a_reader(store: Store, folder: Path) -> None:
    (folder / "loop.json").symlink_to("loop.json")
    (folder / "gone.json").symlink_to("nowhere")
    (folder / "folder.json").mkdir()
    os.mkfifo(folder / "pipe.json")
    (folder / "device.json").symlink_to("/dev/zero")
    (folder / "up").symlink_to(store.root)
    (store.root / "surveys" / "loop").symlink_to("loop")
    for read in (store.load, lambda: read_path(str(store.root))):
        loaded = read()
        assert tools(loaded) == ["0.1.0"]
        messages = said(loaded)
        assert messages["pipe.json"] == messages["device.json"] == "is not a regular file"
        assert messages["loop.json"] == os.strerror(errno.ELOOP)
        assert messages["gone.json"] == os.strerror(errno.ENOENT)
    assert "folder.json" in said(store.load())


def test_a_file_s_size_is_checked_before_it_is_read(store: Store, folder: Path) -> None:
    with open(folder / "huge.json", "wb") as file:
        file.truncate(codec.LIMIT + 1)
    assert said(store.load()) == {"huge.json": "is larger than 64 MiB"}
    assert said(read_path(str(folder / "huge.json"))) == {"huge.json": "is larger than 64 MiB"}


@POSIX
def test_an_unreadable_file_is_reported(nobody: Path) -> None:
    store = Store(nobody / "store")
    name = store.add(survey())
    store.add(survey("0.2.0"))
    (file,) = nobody.rglob(f"{name}.json")
    file.chmod(0)
    loaded = store.load()
    assert tools(loaded) == ["0.2.0"]
    assert said(loaded) == {file.name: os.strerror(errno.EACCES)}


@POSIX
def test_an_unreadable_folder(nobody: Path) -> None:
    store = Store(nobody / "store")
    store.add(survey())
    folder = store.root / "surveys"
    folder.chmod(0)
    try:
        with pytest.raises(StoreError, match=os.strerror(errno.EACCES)):
            store.load()
        assert said(read_path(str(store.root))) == {"surveys": os.strerror(errno.EACCES)}
    finally:
        folder.chmod(0o755)


@POSIX
def test_a_read_only_store_can_be_read_and_says_why_it_cannot_be_written(nobody: Path) -> None:
    store = Store(nobody / "store")
    store.add(survey())
    before = files(store.root)
    folders = [store.root, *(p for p in store.root.rglob("*") if p.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert tools(store.load()) == ["0.1.0"]
        for new in (survey("0.2.0"), survey(device="mps")):
            with pytest.raises(StoreError, match=os.strerror(errno.EACCES)) as caught:
                store.add(new)
            assert "\n" not in str(caught.value)
            assert str(store.root) in str(caught.value)
        assert files(store.root) == before
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_a_file_where_the_store_should_be(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("taken")
    with pytest.raises(StoreError) as caught:
        Store(tmp_path / "store").add(survey())
    assert "\n" not in str(caught.value)
    assert (tmp_path / "store").read_text() == "taken"


@POSIX
def test_a_disk_that_takes_half_a_survey(store: Store, folder: Path) -> None:
    before = files(store.root)
    command = [sys.executable, "-c", SMALL_DISK, str(store.root)]
    ran = subprocess.run(command, input=codec.encode(survey("0.2.0")), capture_output=True, check=True)
    assert os.strerror(errno.EFBIG) in ran.stdout.decode()
    assert ran.stdout.count(b"\n") == 1
    assert files(store.root) == before


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()])
def test_nothing_is_left_of_a_write_that_fails(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, failure: BaseException
) -> None:
    before = files(store.root)

    def fail(*args: object) -> None:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        wanted = StoreError if isinstance(failure, OSError) else KeyboardInterrupt
        with pytest.raises(wanted) as caught:
            store.add(survey("0.2.0"))
    if wanted is StoreError:
        assert str(caught.value).endswith(os.strerror(errno.ENOSPC))
    assert files(store.root) == before
    store.add(survey("0.2.0"))
    assert tools(store.load()) == ["0.1.0", "0.2.0"]


def test_a_lock_that_is_never_given_up(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from filelock import FileLock

    monkeypatch.setattr("amp_matrix.store._LOCK_SECONDS", 0.1)
    with FileLock(store.root / "surveys.lock"), pytest.raises(StoreError, match="another process has held this lock"):
        store.add(survey("0.2.0"))


def test_a_path_is_a_file_or_a_folder_of_them(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "both.json").write_bytes(codec.encode_matrix([survey("1"), survey("2")]))
    (tmp_path / "a" / "b" / "one.json").write_bytes(
        json.dumps(json.loads(codec.encode(survey("3"))), indent=1).encode()
    )
    (tmp_path / "a" / "b" / "bad.json").write_bytes(b"{}")
    (tmp_path / "a" / "b" / "run.jsonl").write_bytes(b"{}")
    loaded = read_path(str(tmp_path))
    assert tools(loaded) == ["1", "2", "3"]
    assert said(loaded) == {"bad.json": "is missing"}
    assert tools(read_path(str(tmp_path / "a" / "both.json"))) == ["1", "2"]
    assert said(read_path(str(tmp_path / "a" / "b" / "bad.json"))) == {"bad.json": "is missing"}


@pytest.mark.parametrize("path", ["nowhere.json", "no/where", "", "a\0b", "x" * 5000])
def test_a_missing_path(path: str) -> None:
    with pytest.raises(PathError) as caught:
        read_path(path)
    assert "\n" not in str(caught.value)


def test_urls(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/surveys-of-a-test/a/one.json", codec.encode(survey("1")))
    memory.pipe("/surveys-of-a-test/a/two.json", codec.encode(survey("2")))
    memory.pipe("/surveys-of-a-test/bad.json", b"{")
    memory.pipe("/surveys-of-a-test/notes.txt", b"{")
    loaded = read_path("memory://surveys-of-a-test")
    assert tools(loaded) == ["1", "2"]
    assert [d.source for d in loaded.damaged] == ["memory:///surveys-of-a-test/bad.json"]
    assert tools(read_path("memory://surveys-of-a-test/a/one.json")) == ["1"]
    for missing in ("memory://nothing/here.json", "nosuchscheme://x/y.json", "file:///no/where.json"):
        with pytest.raises(PathError) as caught:
            read_path(missing)
        assert str(caught.value).startswith(missing)
        assert "\n" not in str(caught.value)


def test_a_remote_store_is_read_not_written(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    local = Store(tmp_path)
    local.add(survey())
    remote = Store(f"file://{tmp_path}")
    assert remote.load().surveys == remote.load(identity_key(survey().environment)).surveys == (survey(),)
    assert remote.load("0" * 16) == Loaded()
    with pytest.raises(StoreError, match="can only be read"):
        remote.add(survey())
    with pytest.raises(StoreError, match="nosuchscheme"):
        Store("nosuchscheme://x").load()


def test_without_fsspec_a_url_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.partition(".")[0] == "fsspec"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(PathError, match=r"pip install 'amp-probe\[remote\]'"):
        read_path("s3://bucket/surveys")


@pytest.mark.parametrize("module", ["codec", "store", "matrix", "config"])
def test_importing_needs_nothing_heavy(module: str) -> None:
    script = f"""
import sys, amp_matrix.{module}
heavy = {{"torch", "numpy", "rich", "typer", "jinja2", "filelock", "platformdirs", "fsspec", "amp_probe"}}
print(sorted(heavy & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert ran.stdout.strip() == "[]"
