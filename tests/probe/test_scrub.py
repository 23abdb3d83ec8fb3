"""What an error's text may say in a document: what happened, and nothing of whose machine it happened on."""

from __future__ import annotations

import os
import platform
import tempfile
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_probe.scrub import clean, scrub

ORDINARY = (
    "1/2 of the rows, and/or none",
    "train/dev/test, mean/var/std, N/C/H/W, float16/bfloat16/float32",
    "aten::_scaled_mm is not implemented for 'Half'",
    "expected m1 and m2 to have the same dtype, but got: float != c10::Half",
    "a ratio of 3.5/2.0; 10 GB/s; 50%",
    "torch.float16/torch.bfloat16 and torch.nn.functional.gelu",
    "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
    "the square root of the user's input",
    "Expected a 'cuda' device type: got cpu",
    "CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle, opa, opb, m, n, k)`",
    "see https://github.com/pytorch/pytorch/issues/96602 and https://pytorch.org/docs/stable/amp.html",
    "x = a / b / c",
    r"the text 'line one\nline two\n' has two lines",
    "input[0]/weight[1]/bias",
    "torch.exp/torch.log and tensor.h/tensor.w",
)

PATHS = (
    ("/home/alice/project/train.py broke", "train.py broke"),
    ('File "/Users/Jane Doe/my project/x.py", line 3', 'File "x.py", line 3'),
    ("cannot open /Users/Jane Doe/data/x.bin now", "cannot open x.bin now"),
    ("no such folder: /home/bob", "no such folder: …"),
    ("no such folder: '/home/bob'", "no such folder: '…'"),
    ("/home/bob and /tmp/tmpab12/out.log", "… and out.log"),
    ("~/secret/notes.md", "notes.md"),
    ("~bob", "~bob"),
    ("../secret/thing", "thing"),
    (r"C:\Users\Jane Doe\AppData\Local\x.py", "x.py"),
    (r"[Errno 2] No such file: 'C:\\Users\\bob\\x.py'", "[Errno 2] No such file: 'x.py'"),
    (r"C:\Users\bob", "…"),
    ("D:/work/secret/x.py:12", "x.py:12"),
    (r"\\server\share\folder\x.dll", "x.dll"),
    ("/pytorch/aten/src/ATen/native/cuda/Loss.cu:123: assert", "Loss.cu:123: assert"),
    ("aten/src/ATen/native/cuda/Loss.cu:123", "Loss.cu:123"),
    ("../aten/src/ATen/Context.cpp:80 (function f)", "Context.cpp:80 (function f)"),
    ("at torch/lib/libtorch_cpu.so", "at libtorch_cpu.so"),
    ("loading /opt/x/lib/libcudart.so.12", "loading libcudart.so.12"),
    ("g++ -I/home/bob/include -L/data/secret/lib x.cpp", "g++ -Iinclude -Llib x.cpp"),
    ("path=/data/secret/x", "path=x"),
    ("(/var/folders/ab/cd/T/tmpx)", "(tmpx)"),
    ("error:/data/secret/x", "error:x"),
    ("file:///home/bob/x.py", "x.py"),
    ("proxy http://proxy.corp.example:3128/pac failed", "proxy … failed"),
)


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert scrub(text) == text


@pytest.mark.parametrize(("text", "expected"), PATHS)
def test_a_path_is_cut_to_its_last_part(text: str, expected: str) -> None:
    assert clean(text, roots=(), words=()) == expected


def test_paths_under_this_runs_own_folders_are_cut() -> None:
    for folder in (os.path.expanduser("~"), os.getcwd(), tempfile.gettempdir()):
        assert scrub(f"cannot read {folder}/a/b.bin!") == "cannot read b.bin!"
        assert folder not in scrub(f"cannot enter {folder}")


def test_a_root_with_spaces_is_cut_without_quotes_and_only_as_a_whole() -> None:
    roots = ("/Volumes/My Disk", "/srv/run")
    assert clean("in /Volumes/My Disk/a/x.py: no", roots, ()) == "in x.py: no"
    assert clean("in /Volumes/My Disk", roots, ()) == "in …"
    assert clean("at /srv/runner/x.py", roots, ()) == "at x.py"


def test_the_names_of_machine_and_user_are_hidden_in_any_case() -> None:
    words = ("box.corp.example", "box", "alice")
    text = "rank 0 on BOX.corp.example (box:29500) by alice, in alice_cache; boxes and alices stay"
    assert clean(text, (), words) == "rank 0 on … (…:29500) by …, in …_cache; boxes and alices stay"


def test_this_machines_name_is_hidden() -> None:
    if len(platform.node()) <= 2 or platform.node() == "localhost":
        pytest.skip("this machine has no name to hide")
    assert platform.node() not in scrub(f"connection to {platform.node()} refused")


def test_the_line_is_one_and_short() -> None:
    line = scrub("first\n  second\t" + "x" * 1000)
    assert line.startswith("first second x")
    assert len(line) == 400
    assert line.endswith("…")


@pytest.mark.parametrize("unit", ["x", "a/", "a ", "/a b", "C:\\a ", "\\", "'/a", "~/", "../", "\\\\ab", "a.py/"])
def test_a_long_text_takes_no_long_time(unit: str) -> None:
    started = time.process_time()
    scrub(unit * 100_000)
    assert time.process_time() - started < 0.5


_part = st.text("abcdefXYZ0123456789_-", min_size=1, max_size=8)


@given(st.lists(_part, min_size=1, max_size=5), _part, st.sampled_from(["", "'", '"', "(", " "]))
def test_no_folder_of_an_absolute_path_survives(folders: list[str], last: str, before: str) -> None:
    named = [f"folder{i}{f}" for i, f in enumerate(folders)]
    after = {"(": ")"}.get(before, before)
    line = clean(f"no {before}/{'/'.join(named)}/{last}{after} here", (), ())
    assert not any(f in line for f in named)
    assert last in line


@given(st.text(max_size=500))
def test_any_text_gives_one_short_line(text: str) -> None:
    line = scrub(text)
    assert len(line) <= 400
    assert "\n" not in line
