"""Every test asserts something: in its own body, or in a helper under ``tests`` that it calls."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Calls that count as assertions, by the last part of their dotted names.
ASSERTING = ("raises", "warns", "fail")
ASSERTING_PREFIX = "assert_"
MAX_DEPTH = 3  # calls from a test to the function that asserts

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def functions_of(path: Path) -> dict[str, Function]:
    """A module's functions by name, nested ones included."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path)))
    return {node.name: node for node in nodes if isinstance(node, Function)}


@cache
def imports_of(path: Path) -> dict[str, tuple[str, str]]:
    """Imports from ``tests``: local name to (module, original name)."""
    imports = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
            for alias in node.names:
                imports[alias.asname or alias.name] = (str(node.module), alias.name)
    return imports


def file_of(module: str, root: Path) -> Path:
    return root.joinpath(*module.split(".")).with_suffix(".py")


def resolve_call(name: str, path: Path, root: Path) -> tuple[Function, Path] | None:
    """Resolves the call ``name`` in the module ``path`` to a function under ``tests``, if any."""
    first, _, rest = name.partition(".")
    if not rest and first in functions_of(path):
        return functions_of(path)[first], path
    if first not in imports_of(path):
        return None
    module, original = imports_of(path)[first]
    if rest:  # from tests.server import worker_harness; worker_harness.check(…)
        module, original = f"{module}.{original}", rest
    file = file_of(module, root)
    if not file.exists() or original not in functions_of(file):
        return None
    return functions_of(file)[original], file


def asserts(function: Function, path: Path, root: Path = ROOT, depth: int = MAX_DEPTH) -> bool:
    """Whether ``function`` of the module ``path`` contains an assertion or calls one that does."""
    names = []
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant):
            return True
        if isinstance(node, ast.Call):
            names.append(ast.unparse(node.func))
    last_parts = [name.rpartition(".")[2] for name in names]
    if any(name in ASSERTING or name.startswith(ASSERTING_PREFIX) for name in last_parts):
        return True
    callees = [resolve_call(name, path, root) for name in names] if depth else []
    return any(
        callee is not None and callee[0] is not function and asserts(*callee, root, depth - 1)
        for callee in callees
    )


def find_tests_without_assertions(path: Path, root: Path = ROOT) -> list[str]:
    """Tests of the module ``path`` that assert nothing."""
    return [
        f"{path.name}::{name}"
        for name, function in functions_of(path).items()
        if name.startswith("test_") and not asserts(function, path, root)
    ]


def test_every_test_asserts_something() -> None:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    assert Path(__file__) in files
    assert not [name for path in files for name in find_tests_without_assertions(path)]


@pytest.mark.parametrize(
    ("body", "asserts_something"),
    [
        ("assert run()", True),
        ("for x in (1, 2):\n        assert x", True),
        ("with pytest.raises(ValueError):\n        run()", True),
        ("np.testing.assert_allclose(run(), 1)", True),
        ("def inner():\n        assert run()\n    inner()", True),
        ("check(run())", True),
        ("helpers.check(run())", True),
        ("imported()", True),
        ("run()", False),
        ("assert True", False),
        ("harmless()", False),
        ("again()", False),
        ("unknown.check()", False),
    ],
)
def test_detects_tests_without_assertions(
    body: str, asserts_something: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "helpers.py").write_text("def check(x):\n    assert x\n")
    (folder / "test_one.py").write_text(
        "from tests import helpers\n"
        "from tests.helpers import check as imported\n"
        "def check(x):\n    deeper(x)\n"
        "def deeper(x):\n    assert x\n"
        "def harmless():\n    run()\n"
        "def again():\n    again()\n"
        f"def test_it():\n    {body}\n"
    )
    reported = find_tests_without_assertions(folder / "test_one.py", tmp_path)
    assert reported == ([] if asserts_something else ["test_one.py::test_it"])
