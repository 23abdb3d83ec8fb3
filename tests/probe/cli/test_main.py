"""What holds for every command: help, versions, exit codes, streams and surroundings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from amp_matrix.version import __version__
from amp_probe.cli import env, main, output, schema
from amp_probe.cli.refused import Refused, device_name

COMMANDS = ("run", "show", "report", "choose", "check", "diff", "merge", "env", "schema")
Spawn = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(cli, command: str) -> None:
    ran = cli(command, "--help")
    assert ran.code == 0
    assert f"Usage: amp-probe {command}" in ran.out
    assert f"  amp-probe {command}" in ran.out.split("Examples:")[1]
    assert ran.err == ""


def test_the_version(cli) -> None:
    ran = cli("--version")
    assert (ran.code, ran.out, ran.err) == (0, f"amp-probe {__version__}\n", "")


def test_no_command_is_a_fault_of_usage(cli) -> None:
    ran = cli()
    assert (ran.code, ran.out) == (2, "")
    assert all(f"\n  {command} " in ran.err for command in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["shwo"], "No such command 'shwo'"),
        (["show", "--devise", "cpu"], "No such option"),
        (["diff", "one.json"], "NEW"),
        (["merge"], "PATH"),
        (["show", "--color", "allways"], "did you mean 'always'?"),
        (["--color", "nerver", "show"], "did you mean 'never'?"),
    ],
)
def test_usage_is_exit_2(cli, arguments: list[str], said: str) -> None:
    ran = cli(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_all_faults_are_said_at_once(cli) -> None:
    ran = cli(
        *("run", "--suite", "quik", "--device", "cdua", "--precision", "bf16mixed", "--precision", "fp32+te-delayed"),
        *("--timeout", "-1", "--jobs", "no", "--out", "missing/folder/x.json"),
    )
    assert (ran.code, ran.out) == (2, "")
    for said in (
        "--suite: unknown value 'quik'; did you mean 'quick'?",
        "--device: unknown device 'cdua'; did you mean 'cuda'?",
        "--precision: unknown compute precision 'bf16mixed'; did you mean 'bf16-mixed'?",
        "--precision: the FP8 recipe te-delayed stands beside",
        "--timeout: '-1' is not a time",
        "--jobs: 'no' is not a number",
        "--out: cannot write missing/folder/x.json: No such file or directory",
    ):
        assert f"error: {said}" in ran.err
    assert ran.err.count("error: ") == 7


def test_the_configurations_faults_join_the_flags(cli, monkeypatch) -> None:
    monkeypatch.setenv("AMP_PROBE_SUIT", "core")
    ran = cli("run", "--device", "gpu")
    assert ran.code == 2
    assert "AMP_PROBE_SUIT" in ran.err
    assert "--device: unknown device 'gpu'" in ran.err


@pytest.mark.parametrize("text", ["cpu:0", "mps:1", "CUDA", "cuda:", "cuda:-1", "", "cuda:0\n", "privateuseone"])
def test_a_device_that_cannot_be(text: str) -> None:
    with pytest.raises(ValueError, match="device"):
        device_name(text)


@pytest.mark.parametrize("text", ["cpu", "cuda", "cuda:12", "mps", "xpu", "xpu:0"])
def test_a_device_that_can_be(text: str) -> None:
    assert device_name(text) == text


def _broken() -> int:
    raise ZeroDivisionError("a\nbug")


def test_an_internal_error_is_one_line_and_exit_2(cli, monkeypatch) -> None:
    monkeypatch.setattr(main, "_COMMANDS", (("schema", "", _broken, ""),))
    ran = cli("schema")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("internal error: ZeroDivisionError: a bug; please report it")
    assert len(ran.err.splitlines()) == 1
    monkeypatch.setenv("AMP_PROBE_DEBUG", "1")
    assert "in _broken" in cli("schema").err


def test_ctrl_c_is_130(cli, monkeypatch) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "_COMMANDS", (("schema", "", interrupted, ""),))
    ran = cli("schema")
    assert (ran.code, ran.out, ran.err) == (130, "", "interrupted\n")


def test_debug_is_a_name_that_the_configuration_knows(cli, monkeypatch) -> None:
    monkeypatch.setenv("AMP_PROBE_DEBUG", "1")
    assert cli("show").code == 0


def test_only_probing_imports_torch(written, tmp_path: Path) -> None:
    one, two = written("one.json"), written("two.json", started="2026-01-02T00:00:00Z")
    lines = f"""--help
        --version
        run --help
        run --suite wrong
        show {one}
        report --html {one}
        report --markdown {one}
        report --csv {one}
        report --json {one}
        check {one} --require cpu/op.gelu@fp32
        diff {one} {two}
        merge {one} {two}
        schema"""
    commands = [line.split() for line in lines.splitlines()]
    code = (
        "import sys, json\nfrom amp_probe.cli.main import main\nimport amp_probe.run\n"
        "for c in json.loads(sys.argv[1]):\n    main(c)\n    assert 'torch' not in sys.modules, c\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(commands)], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


def test_a_machines_stdout_holds_nothing_else(spawned: Spawn) -> None:
    done = spawned("schema")
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["$schema"].startswith("https://json-schema.org/")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX streams")
def test_streams_that_are_closed_give_no_traceback(written) -> None:
    path = written()
    for redirect in (">&-", "2>&-", "<&-", "<&- >&- 2>&-", "| head -c 1", "| true", "2>/dev/full"):
        for command in (f"show {path}", f"report --json {path}", "--help", "show missing.json"):
            line = f'"{sys.executable}" -m amp_probe {command} {redirect}'
            done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, timeout=60, check=False)
            assert done.returncode == (2 if "missing" in command else 0), (line, done)
            assert b"Traceback" not in done.stderr, (line, done)
            assert b"Exception ignored" not in done.stderr, (line, done)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_on_stdout_is_one_line_and_exit_2(written) -> None:
    line = f'"{sys.executable}" -m amp_probe show {written()} > /dev/full'
    done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, b"error: standard output: No space left on device\n")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX locales")
def test_bare_surroundings_give_no_traceback(written, spawned: Spawn, tmp_path: Path) -> None:
    path = written()
    kept = {"PATH": os.environ["PATH"]}
    for extra in (
        {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"COLUMNS": "10"},
        {"COLUMNS": "1"},
        {"COLUMNS": "wide"},
        {"TERM": "dumb", "NO_COLOR": "1"},
        {"HOME": ""},
    ):
        for arguments in (["show", path], ["show"], ["run", "--help"], ["diff", path, path]):
            done = spawned(*arguments, env={**kept, "XDG_DATA_HOME": str(tmp_path), **extra})
            assert done.returncode == 0, (extra, arguments, done.stderr.decode())
            assert b"Traceback" not in done.stderr


def test_colour_is_asked_for_or_not(cli, written, monkeypatch) -> None:
    path = written()
    assert "\x1b[" not in cli("show", path).out
    assert "\x1b[" in cli("show", path, "--color", "always").out
    assert "\x1b[" in cli("--color", "always", "show", path).out
    assert "\x1b[" not in cli("--color", "always", "show", path, "--color", "never").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" in cli("show", path, "--color", "always").out


def test_others_text_cannot_drive_the_terminal() -> None:
    assert output.visible("a\x1b[2Jb\x07\n  kept") == "ab\n  kept"


def test_shell_completion_knows_commands_and_closed_lists(spawned: Spawn) -> None:
    def completed(words: str, count: int) -> str:
        asked = {"_AMP_PROBE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}
        line = "from amp_probe.cli.main import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", line],
            env={**os.environ, **asked},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout

    assert "report" in completed("amp-probe re", 1).split()
    assert completed("amp-probe run --suite q", 3).split() == ["quick"]


def test_the_console_command_is_this_one() -> None:
    from importlib.metadata import entry_points

    (found,) = [e for e in entry_points(group="console_scripts") if e.name == "amp-probe"]
    assert found.load() is main.main


def test_a_refusal_keeps_every_fault() -> None:
    assert Refused("one").faults == ("one",)
    assert str(Refused(["one", "two"])) == "one\ntwo"
    assert schema.EXAMPLES.startswith("\b\n")
    assert env.EXAMPLES.startswith("\b\n")
