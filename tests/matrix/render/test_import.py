"""Importing the package of renderers costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("form", ["", ".csv", ".json", ".markdown"])
def test_a_form_imports_only_what_it_needs(form: str) -> None:
    code = (
        f"import sys, amp_matrix.render{form}; "
        "print(sorted({'rich', 'jinja2', 'torch', 'typer', 'markupsafe'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
