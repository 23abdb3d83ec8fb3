"""The import arrows between the packages, and what importing must leave out."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MATRIX = ROOT / "matrix" / "amp_matrix"
PROBE = ROOT / "probe" / "amp_probe"


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _files(*places: Path) -> list[Path]:
    """The Python files that stand under these files, modules (without .py) or folders."""
    found: list[Path] = []
    for place in places:
        found += sorted(place.rglob("*.py")) if place.is_dir() else []
        found += [place.with_suffix(".py")] if place.with_suffix(".py").is_file() else []
    return found


def _imports(path: Path, anywhere: bool = True) -> Iterator[str]:
    """Every module that a file imports; `from a import b` gives both `a` and `a.b`. Type-checking imports count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = _name(path) if path.name == "__init__.py" else _name(path).rpartition(".")[0]
    for node in ast.walk(tree) if anywhere else _at_import(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], *base.split(".")])
            yield base.rstrip(".")
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a module is imported: none inside functions, none under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from (n for branch in node.orelse for n in [branch, *_at_import(branch)])
            continue
        yield node
        yield from _at_import(node)


def _uses(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def _breaches(files: list[Path], forbidden: tuple[str, ...], anywhere: bool = True) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files
        for module in _imports(path, anywhere)
        if any(_uses(module, name) for name in forbidden)
    ]


def test_the_files_are_found() -> None:
    assert len(_files(MATRIX)) > 5
    assert len(_files(PROBE)) > 5
    assert "amp_probe.cli.refused" in set(_imports(PROBE / "cli" / "main.py"))
    assert "amp_matrix.survey" in set(_imports(MATRIX / "cell_id.py"))


def test_a_breach_would_be_seen(tmp_path: Path) -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\ndef f():\n    import rich\n"
    late = ast.parse(source)
    names = {n.names[0].name for n in _at_import(late) if isinstance(n, (ast.Import, ast.ImportFrom))}
    assert names == {"TYPE_CHECKING"}
    early = ast.parse("class A:\n    import torch\ntry:\n    import rich\nexcept ImportError:\n    pass\n")
    names = {n.names[0].name for n in _at_import(early) if isinstance(n, ast.Import)}
    assert names == {"torch", "rich"}


def test_the_matrix_never_imports_the_prober() -> None:
    assert _breaches(_files(MATRIX), ("amp_probe",)) == []


def test_the_matrix_imports_no_torch_when_it_is_imported() -> None:
    names = sorted({_name(p) for p in _files(MATRIX)})
    code = f"import sys\nfor name in {names!r}:\n    __import__(name)\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("module", ["survey", "precision"])
def test_the_ground_imports_nothing_of_ours(module: str) -> None:
    assert _breaches(_files(MATRIX / module), ("amp_matrix", "amp_probe")) == []


@pytest.mark.parametrize(
    ("reader", "others"),
    [
        ("render", ("amp_matrix.choose", "amp_matrix.gate")),
        ("gate", ("amp_matrix.choose", "amp_matrix.render")),
        ("choose", ("amp_matrix.gate", "amp_matrix.render")),
        ("decide", ("amp_matrix.gate", "amp_matrix.render")),
    ],
)
def test_the_readers_know_nothing_of_each_other(reader: str, others: tuple[str, ...]) -> None:
    assert _breaches(_files(MATRIX / reader), others) == []


def test_probes_never_touch_processes_files_or_the_command_line() -> None:
    effects = ("subprocess", "multiprocessing", "socket", "pathlib", "io", "tempfile", "shutil", "os", "signal")
    ours = ("amp_probe.isolate", "amp_probe.worker", "amp_probe.cli", "amp_probe.run", "amp_probe.journal")
    files = _files(PROBE / "probes")
    assert _breaches(files, (*effects, *ours, "typer", "rich", "amp_matrix.store")) == []
    opens = [p.name for p in files for n in ast.walk(ast.parse(p.read_text())) if _is_open(n)]
    assert opens == []


def test_isolation_knows_nothing_of_probes() -> None:
    seen: set[str] = set()
    left = {"isolate", "worker"}
    while left:
        name = left.pop()
        seen.add(name)
        files = _files(PROBE / name)
        assert files, f"amp_probe.{name} is not there"
        assert _breaches(files, ("amp_matrix", "torch", "numpy")) == []
        ours = {m.split(".")[1] for p in files for m in _imports(p) if m.startswith("amp_probe.")}
        left |= ours - seen
    knowing = ("probes", "case", "suite", "request", "session", "run", "journal", "devices", "precisions", "numerics")
    assert seen.isdisjoint((*knowing, "harness", "cli"))


def test_the_command_line_is_used_by_nobody() -> None:
    others = [p for p in _files(PROBE) if "cli" not in p.parts and p.name != "__main__.py"]
    assert _breaches(others, ("amp_probe.cli",)) == []


def test_importing_the_matrix_leaves_heavy_modules_out() -> None:
    heavy = ("torch", "numpy", "rich", "typer", "jinja2")
    code = f"import sys, amp_matrix; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def _is_open(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"
