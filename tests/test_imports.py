"""Dependencies point one way, and torch stays out of the server."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What each folder may import of ours: a folder, or a single module.
ALLOWED = {
    "protos": {"protos"},
    "model": {"model"},
    "export": {"export", "model"},
    "server": {"server", "protos", "model.config", "model.bundle", "model.bundle_files"},
    "client": {"client", "protos"},
    "loadtest": {"loadtest", "client", "protos"},
}
OURS = {*ALLOWED, "tests", "scripts"}
# Programs of the comparison that run in environments of their own, with what is compared.
PEERS = "loadtest/peers"
TORCH_FREE_MODULES = (
    "model/config.py",
    "model/position_config.py",
    "model/bundle.py",
    "model/graph_spec.py",
    "model/bundle_files.py",
)


def _files(folder: str) -> list[Path]:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, f"{folder} has no modules"
    return files


def _imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in the file; ``from a import b`` is a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _importers(folder: str, package: str) -> list[str]:
    return [
        str(path.relative_to(ROOT))
        for path in _files(folder)
        if any(_is_within(module, package) for module in _imports(path))
    ]


@pytest.mark.parametrize("folder", ALLOWED)
def test_dependencies_point_one_way(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in _files(folder)
        for module in _imports(path)
        if module.partition(".")[0] in OURS
        and not any(_is_within(module, allowed) for allowed in ALLOWED[folder])
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", ALLOWED)
def test_package_files_are_empty(folder: str) -> None:
    packages = [path for path in _files(folder) if path.name == "__init__.py"]
    assert [path for path in packages if path.read_text(encoding="utf-8").strip()] == []


@pytest.mark.parametrize("package", ["onnxruntime", "prometheus_client"])
def test_one_file_of_the_server_imports(package: str) -> None:
    assert len(_importers("server", package)) == 1


@pytest.mark.parametrize("folder", ["server", "client", "loadtest", "protos"])
def test_no_torch_where_models_are_served(folder: str) -> None:
    found = [name for name in _importers(folder, "torch") if not name.startswith(PEERS)]
    assert found == []


@pytest.mark.parametrize("folder", ALLOWED)
def test_nothing_imports_the_peers_but_they_themselves(folder: str) -> None:
    found = _importers(folder, PEERS.replace("/", "."))
    assert [name for name in found if not name.startswith(PEERS)] == []


@pytest.mark.parametrize("module", TORCH_FREE_MODULES)
def test_what_the_server_takes_from_model_is_free_of_torch(module: str) -> None:
    assert not any(_is_within(name, "torch") for name in _imports(ROOT / module))


@pytest.mark.parametrize("module", ["server.__main__", "server.app", "client.cli", "loadtest.cli"])
def test_torch_is_not_loaded_by(module: str) -> None:
    program = f"import sys, {module}; print([name for name in sys.modules if name == 'torch'])"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "[]\n"), ran.stderr
