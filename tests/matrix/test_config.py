"""Settings: where they come from, which one holds, and what is said of those that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_matrix.config import Config, ConfigError, load

EVERYTHING = """
[tool.amp-probe]
store = "surveys"
suite = "quick"
devices = ["cpu", "cuda", "cuda:1"]
timeout = 30
jobs = 4
task = "infer"
prefer = "memory"
require = ["cpu: bf16-mixed: train", "op.softmax@bf16-mixed"]
baseline = "ci/baseline.json"
"""


def write(folder: Path, text: str | bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "pyproject.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def faults(start: Path, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(start, environ or {})
    assert str(caught.value).count("\n") == len(caught.value.faults) - 1
    return str(caught.value).splitlines()


def test_nothing_set(tmp_path: Path) -> None:
    assert load(tmp_path, {}) == Config()
    assert load(tmp_path / "not" / "there", {"PATH": "/bin"}) == Config()


def test_every_key_of_the_file_with_paths_from_there(tmp_path: Path) -> None:
    write(tmp_path, EVERYTHING)
    below = tmp_path / "src" / "deep"
    below.mkdir(parents=True)
    assert load(below, {}) == Config(
        store=str(tmp_path / "surveys"),
        suite="quick",
        devices=("cpu", "cuda", "cuda:1"),
        timeout=30.0,
        jobs=4,
        task="infer",
        prefer="memory",
        require=("cpu: bf16-mixed: train", "op.softmax@bf16-mixed"),
        baseline=str(tmp_path / "ci" / "baseline.json"),
    )


def test_variables_win_over_the_file_key_by_key(tmp_path: Path) -> None:
    write(tmp_path, EVERYTHING)
    here = tmp_path / "here"
    here.mkdir()
    environ = {
        "AMP_PROBE_STORE": "mine",
        "AMP_PROBE_SUITE": "full",
        "AMP_PROBE_DEVICES": "cpu, mps",
        "AMP_PROBE_TIMEOUT": "2.5",
        "AMP_PROBE_JOBS": "2",
        "AMP_PROBE_REQUIRE": 'op.gelu@fp32; python_version in "3.10, 3.11"\nop.silu@fp32\n',
    }
    config = load(here, environ)
    assert (config.store, config.suite, config.devices) == (str(here / "mine"), "full", ("cpu", "mps"))
    assert (config.timeout, config.jobs, config.task) == (2.5, 2, "infer")
    assert config.require == ('op.gelu@fp32; python_version in "3.10, 3.11"', "op.silu@fp32")


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    write(tmp_path, EVERYTHING)
    assert load(tmp_path, {"AMP_PROBE_SUITE": "", "AMP_PROBE_JOBS": " "}).suite == "quick"


def test_a_url_stays_and_a_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert load(tmp_path, {"AMP_PROBE_STORE": "s3://bucket/surveys"}).store == "s3://bucket/surveys"
    assert load(tmp_path, {"AMP_PROBE_STORE": "~/surveys"}).store == str(tmp_path / "surveys")


def test_the_nearest_file_with_the_table_counts(tmp_path: Path) -> None:
    write(tmp_path, "[tool.amp-probe]\nsuite = 'full'")
    write(tmp_path / "a", "[tool.amp-probe]\nsuite = 'quick'")
    write(tmp_path / "a" / "b", "[tool.ruff]\nline-length = 100")
    (tmp_path / "a" / "b" / "c").mkdir()
    assert load(tmp_path / "a" / "b" / "c", {}).suite == "quick"


def test_all_faults_at_once_each_with_its_place(tmp_path: Path) -> None:
    file = write(tmp_path, "[tool.amp-probe]\nsuit = 'core'\njobs = '4'\ntimeout = -1\nprefer = 'sped'\n")
    lines = faults(tmp_path, {"AMP_PROBE_STOR": "x", "AMP_PROBE_TASK": "training", "AMP_PROBE_DEVICES": "cpu,cdua"})
    assert lines == [
        f"{file}: tool.amp-probe.suit: unknown key; did you mean 'suite'?",
        f"{file}: tool.amp-probe.jobs: expected a whole number from 1 to 1024, got '4'",
        f"{file}: tool.amp-probe.timeout: expected seconds above 0 and at most 604800, got -1",
        f"{file}: tool.amp-probe.prefer: unknown value 'sped'; did you mean 'speed'?",
        "AMP_PROBE_STOR: unknown variable; did you mean 'AMP_PROBE_STORE'?",
        "AMP_PROBE_DEVICES: unknown device 'cdua'; did you mean 'cuda'?",
        "AMP_PROBE_TASK: unknown value 'training'; did you mean 'train'?",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("store = 3", "expected text, got 3"),
        ("store = ''", "'' names nothing"),
        ("baseline = ['a']", "expected text, got ['a']"),
        ("suite = 1", "expected one of quick, core, full, got 1"),
        ("devices = 'cpu'", "expected a list of texts, got 'cpu'"),
        ("devices = ['cpu', 1]", "expected a list of texts"),
        ("devices = ['gpu:0']", "unknown device 'gpu:0'"),
        ("require = ['']", "empty"),
        ("require = {a = 1}", "expected a list of texts"),
        ("timeout = true", "expected seconds as a number, got True"),
        ("timeout = nan", "expected seconds above 0"),
        ("timeout = inf", "expected seconds above 0"),
        ("timeout = 0", "expected seconds above 0"),
        ("jobs = 1.5", "expected a whole number"),
        ("jobs = true", "expected a whole number"),
        ("jobs = 0", "expected a whole number"),
        ("task = 2026-01-01", "expected one of train, infer"),
    ],
)
def test_a_wrong_value_names_its_key_and_what_was_expected(tmp_path: Path, line: str, expected: str) -> None:
    write(tmp_path, f"[tool.amp-probe]\n{line}")
    (said,) = faults(tmp_path)
    assert f"tool.amp-probe.{line.split()[0]}: " in said
    assert expected in said


@pytest.mark.parametrize(
    ("name", "text"), [("TIMEOUT", "soon"), ("TIMEOUT", "nan"), ("JOBS", "2.0"), ("JOBS", "9" * 99)]
)
def test_a_wrong_number_in_a_variable(tmp_path: Path, name: str, text: str) -> None:
    (said,) = faults(tmp_path, {f"AMP_PROBE_{name}": text})
    assert said.startswith(f"AMP_PROBE_{name}: expected ")


def test_variables_that_are_no_settings(tmp_path: Path) -> None:
    assert load(tmp_path, {"AMP_PROBE_DEBUG": "1", "AMP_PROBED": "x"}) == Config()
    (said,) = faults(tmp_path, {"AMP_PROBE_store": "x"})
    assert "did you mean 'AMP_PROBE_STORE'?" in said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[tool.amp-probe\n", "cannot be read"),
        (b"[tool.amp-probe]\nsuite = '\xff'", "not UTF-8 at byte 26"),
        ("tool = 3\n[tool.amp-probe]", "cannot be read"),
        ("[tool]\namp-probe = 3", "expected a table, got 3"),
        ("x = " + "[" * 100_000, "cannot be read: nested too deeply"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, text: str | bytes, expected: str) -> None:
    file = write(tmp_path, text)
    (said,) = faults(tmp_path)
    assert said.startswith(f"{file}: ")
    assert expected in said


def test_a_folder_of_that_name_is_passed_by(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").mkdir()
    assert load(tmp_path, {}) == Config()
