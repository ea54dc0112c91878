"""The shape of the project, as laws: who imports whom, what files are called, their size."""

from __future__ import annotations

import ast
import gc
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "protos",
    "kernels",
    "target_service",
    "draft_service",
    "gateway",
    "slipstream",
    "training",
    "benchmarks",
)
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc", "manager", "base"}
SOURCES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if not path.name.endswith(("_pb2.py", "_pb2_grpc.py"))
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))


@pytest.fixture(autouse=True)
def no_garbage_collection():
    """CPython before 3.11.9 fails to parse while a destructor runs (gh-106905)."""
    gc.disable()
    yield
    gc.enable()


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return every function and method of a file."""
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def test_import_contracts_hold():
    """The layers of the design: front ends, services that do not know each other, shared code."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]

    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("package", ["gateway", "gateway.__main__"])
def test_the_gateway_runs_without_torch(package):
    """Importing the gateway loads neither torch nor kernels that would need it."""
    names = "('torch', 'kernels.attention', 'kernels.dispatch')"
    script = f"import {package}, sys; print([m for m in {names} if m in sys.modules])"

    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)

    assert ran.stdout.strip() == "[]", ran.stderr


def test_kernels_is_ours():
    """PyPI has a package of this name; ours must win, and the other must not be there."""
    import kernels

    assert Path(kernels.__file__).parent == ROOT / "kernels"


def test_no_file_is_a_drawer():
    """A name that says nothing collects everything."""
    drawers = [path for path in SOURCES + TESTS if path.stem in FORBIDDEN_NAMES]

    assert drawers == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small(path):
    """No file over 300 lines, no function over 50."""
    too_long = [(f.name, length(f)) for f in functions(path) if length(f) > 50]

    assert len(path.read_text().splitlines()) <= 300
    assert too_long == []


def test_functions_are_small_on_the_whole():
    """Half of all functions have at most 8 lines, nine in ten at most 25."""
    lengths = sorted(length(function) for path in SOURCES for function in functions(path))

    assert statistics.median(lengths) <= 8
    assert lengths[int(0.9 * (len(lengths) - 1))] <= 25


def test_every_module_says_what_it_is():
    """A module begins with a docstring."""
    silent = [path for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))]

    assert silent == []


def runs_foreign_code(node: ast.AST) -> bool:
    """Whether a node imports pickle, or calls eval, exec, torch.load or torch.save."""
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] in ("pickle", "dill") for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.module in ("pickle", "dill")
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return called in ("eval", "exec", "torch.load", "torch.save")


@pytest.mark.parametrize("line", ["import pickle", "torch.load(f)", "eval(x)"])
def test_the_next_test_can_fail(line):
    """What it looks for is found."""
    assert any(runs_foreign_code(node) for node in ast.walk(ast.parse(line)))


def test_nothing_runs_foreign_code():
    """Weights are safetensors; nothing may run code from a file or a wire."""
    guilty = [
        path
        for path in SOURCES
        if any(map(runs_foreign_code, ast.walk(ast.parse(path.read_text()))))
    ]

    assert guilty == []
