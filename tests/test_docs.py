"""The help that the documents show is the help that the commands print."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def readme() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "tools" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["README.md", "docs/cli.md"])
def test_shown_help_is_the_real_help(readme: ModuleType, name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    shown = [(m[3], m[4]) for m in readme.BLOCK.finditer(text) if m[3].endswith("--help")]
    assert shown
    for command, block in shown:
        assert _words(block) == _words(readme.printed(command, both=False)), f"run: make readme ({command})"


def _words(text: str) -> list[str]:
    """Without the usage line and the line breaks: those differ between releases of typer."""
    return text.partition("\n")[2].split()


def test_every_block_is_filled(readme: ModuleType) -> None:
    for name in ("README.md", "docs/cli.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert text.count("<!-- run") == len(readme.BLOCK.findall(text))
        assert all(m[4].strip() for m in readme.BLOCK.finditer(text)), name


def test_links_lead_somewhere() -> None:
    import re

    for name in ("README.md", "docs/cli.md"):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / name).read_text(encoding="utf-8")):
            assert (ROOT / name).parent.joinpath(target).exists(), target
