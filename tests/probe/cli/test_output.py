"""Files are written in one piece, and what prevents that is known before the work."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from amp_probe.cli import output
from amp_probe.cli.refused import Refused


def test_a_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_bytes(b"old")
    path.chmod(0o640)
    output.write_file(str(path), b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["out.json"]


def test_a_new_file_has_the_umasks_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        output.write_file(str(tmp_path / "out.json"), b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out.json").stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    output.write_file(str(tmp_path / "link"), b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_device_file_is_written_to_and_not_replaced() -> None:
    output.write_file(os.devnull, b"new")
    assert not stat.S_ISREG(os.stat(os.devnull).st_mode)
    with pytest.raises(Refused, match="No space left"):
        output.write_file("/dev/full", b"new")


@pytest.mark.parametrize("path", ["", "missing/out.json", "file/out.json", ".", "a\0b", "x" * 5000])
def test_what_cannot_be_written_is_known_before(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert output.check_writable(path)
    assert os.listdir(tmp_path) == ["file"]


def test_what_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    assert output.check_writable(str(tmp_path / "old")) == ""
    assert output.check_writable(str(tmp_path / "new")) == ""
    assert output.check_writable(os.devnull) == ""
    assert os.listdir(tmp_path) == ["old"]
    assert (tmp_path / "old").read_bytes() == b"old"


def test_lines_are_wrapped_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "not bf16-mixed: " + "a b " * 30 + "\n\nshort\n"
    assert output.wrapped(words) == words
    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "40")
    lines = output.wrapped(words).splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[1].startswith("    a b")
    assert lines[-2:] == ["", "short"]
    assert " ".join(" ".join(lines).split()) == " ".join(words.split())
