"""Import rules: dependencies point one way, and the server never imports torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Folders and modules of this repository that each folder may import.
ALLOWED = {
    "protos": {"protos"},
    "model": {"model"},
    "export": {"export", "model"},
    # From export, only what reads the checkpoint that a training starts from.
    "train": {
        "train",
        "model",
        "export.checkpoint",
        "export.errors",
        "export.importers.native",
        "export.importers.native_adapter",
        "export.sources",
    },
    "server": {
        "server",
        "protos",
        "model.adapters",
        "model.audio",
        "model.config",
        "model.ctc",
        "model.bundle",
        "model.bundle_files",
        "model.chat_template",
        "model.images",
        "model.languages",
        "model.late_interaction",
        "model.quality",
        "model.shortlist",
        "model.span_tagging",
        "model.tiles",
    },
    "client": {"client", "protos"},
    "loadtest": {"loadtest", "client", "protos"},
    # Imports the programs by name, when they run.
    "triune": {"triune"},
}
LOCAL_PACKAGES = {*ALLOWED, "tests", "scripts"}
# What each folder of server/ may import from server/ besides itself and NEUTRAL. The other modules
# at the top (app, __main__, bench, …) wire the parts together and may import everything.
ALLOWED_IN_SERVER = {
    "frontends": {"service", "telemetry"},
    "service": {"engine", "models", "text", "telemetry"},
    "models": {"engine", "runtime", "text"},
    "engine": {"runtime.contract", "runtime.host_ops", "runtime.memory"},
    "telemetry": {"engine.observer"},
    "text": set(),
    "runtime": set(),
}
# Top-level modules that any folder of server/ may import. They import only each other.
NEUTRAL = {
    *("addresses", "bounds", "byte_sizes", "config", "config_defaults", "constraint"),
    *("control_groups", "errors"),
    *("file_changes", "niceness", "option", "out_of_memory", "printable"),
}
# Wire-format packages: only front ends may import them.
WIRE = (
    *("grpc", "grpc_health", "grpc_reflection", "grpc_status", "google", "protos"),
    *("starlette", "uvicorn", "httptools"),
)

# Benchmark peers: programs that run in separate environments.
PEERS = "loadtest/peers"
TORCH_FREE_MODULES = (
    "model/config.py",
    "model/position_config.py",
    "model/bundle.py",
    "model/graph_spec.py",
    "model/bundle_files.py",
    "model/chat_template.py",
    "model/ctc.py",
    "model/template_bounds.py",
    "model/late_interaction.py",
    "model/shortlist.py",
    "model/span_tagging.py",
    "model/quality.py",
    "model/examples.py",
    "model/native_checkpoint.py",
)


def _files(folder: str) -> list[Path]:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, f"{folder} has no modules"
    return files


def _imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in the file; ``from a import b`` gives a.b."""
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
def test_folders_import_only_allowed_modules(folder: str) -> None:
    violations = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in _files(folder)
        for module in _imports(path)
        if module.partition(".")[0] in LOCAL_PACKAGES
        and not any(_is_within(module, allowed) for allowed in ALLOWED[folder])
    ]
    assert violations == []


@pytest.mark.parametrize("folder", ALLOWED)
def test_init_files_are_empty(folder: str) -> None:
    packages = [path for path in _files(folder) if path.name == "__init__.py"]
    assert [path for path in packages if path.read_text(encoding="utf-8").strip()] == []


def _part(module: str) -> str:
    """The folder or top-level module of server/ that ``server.part…`` belongs to."""
    return module.split(".")[1]


def _parts() -> dict[str, list[Path]]:
    """The files of each folder and top-level module of server/."""
    parts: dict[str, list[Path]] = {}
    for path in _files("server"):
        name = path.relative_to(ROOT / "server").parts[0].removesuffix(".py")
        if name != "__init__":
            parts.setdefault(name, []).append(path)
    return parts


PARTS = _parts()
# Codecs without a wire format, which several front ends share.
SHARED_CODECS = ("oip",)
FRONT_ENDS = sorted(path.parent.name for path in ROOT.glob("server/frontends/*/__init__.py"))


def _server_imports(part: str) -> list[tuple[Path, str]]:
    """Imports of other parts of server/: (file, imported module)."""
    return [
        (path.relative_to(ROOT), module)
        for path in PARTS[part]
        for module in _imports(path)
        if _is_within(module, "server") and _part(module) != part
    ]


def test_rules_cover_every_server_folder() -> None:
    folders = {name for name in PARTS if (ROOT / "server" / name).is_dir()}
    assert folders == set(ALLOWED_IN_SERVER)


@pytest.mark.parametrize("folder", ALLOWED_IN_SERVER)
def test_server_folders_import_only_allowed_folders(folder: str) -> None:
    allowed = [f"server.{name}" for name in ALLOWED_IN_SERVER[folder] | NEUTRAL]
    violations = [
        f"{path} imports {module}"
        for path, module in _server_imports(folder)
        if not any(_is_within(module, package) for package in allowed)
    ]
    assert violations == []


@pytest.mark.parametrize("module", sorted(NEUTRAL & set(PARTS)))
def test_neutral_modules_import_only_each_other(module: str) -> None:
    assert [name for _, name in _server_imports(module) if _part(name) not in NEUTRAL] == []


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_front_ends_do_not_import_each_other(front_end: str) -> None:
    allowed = [f"server.frontends.{name}" for name in (front_end, *SHARED_CODECS)]
    violations = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in _files(f"server/frontends/{front_end}")
        for module in _imports(path)
        if _is_within(module, "server.frontends")
        and not any(_is_within(module, name) for name in allowed)
    ]
    assert violations == []


@pytest.mark.parametrize("codec", SHARED_CODECS)
def test_shared_codecs_import_no_wire_format(codec: str) -> None:
    assert [name for wire in WIRE for name in _importers(f"server/frontends/{codec}", wire)] == []


def test_server_parts_have_no_import_cycle() -> None:
    """``CycleError`` names the cycle."""
    dependencies = {part: {_part(module) for _, module in _server_imports(part)} for part in PARTS}
    order = list(TopologicalSorter(dependencies).static_order())
    assert order.index("runtime") < order.index("models")


def _subpackage(module: str) -> str:
    """``server.engine.cache.slots`` belongs to ``server.engine.cache``.

    A module outside a subpackage counts as its own.
    """
    part, _, rest = module.removeprefix("server.").partition(".")
    return f"server.{part}.{rest.partition('.')[0]}"


@pytest.mark.parametrize("folder", ALLOWED_IN_SERVER)
def test_server_folder_has_no_import_cycle(folder: str) -> None:
    """``CycleError`` names the cycle."""
    dependencies: dict[str, set[str]] = {}
    for path in PARTS[folder]:
        subpackage = _subpackage(".".join(path.relative_to(ROOT).with_suffix("").parts))
        inside = {
            _subpackage(name) for name in _imports(path) if _is_within(name, f"server.{folder}")
        }
        dependencies.setdefault(subpackage, set()).update(inside - {subpackage})
    assert set(TopologicalSorter(dependencies).static_order()) >= dependencies.keys()


@pytest.mark.parametrize("part", sorted(PARTS.keys() - {"frontends"}))
def test_only_front_ends_import_wire_formats(part: str) -> None:
    violations = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in PARTS[part]
        for module in _imports(path)
        if any(_is_within(module, package) for package in WIRE)
    ]
    assert violations == []


@pytest.mark.parametrize("package", ["onnxruntime", "prometheus_client"])
def test_only_one_server_module_imports(package: str) -> None:
    assert len(_importers("server", package)) == 1


@pytest.mark.parametrize("folder", ["server", "client", "loadtest", "protos", "triune"])
def test_serving_code_does_not_import_torch(folder: str) -> None:
    importers = [name for name in _importers(folder, "torch") if not name.startswith(PEERS)]
    assert importers == []


@pytest.mark.parametrize("folder", ALLOWED)
def test_only_peers_import_peers(folder: str) -> None:
    importers = _importers(folder, PEERS.replace("/", "."))
    assert [name for name in importers if not name.startswith(PEERS)] == []


@pytest.mark.parametrize("module", TORCH_FREE_MODULES)
def test_model_modules_used_by_the_server_do_not_import_torch(module: str) -> None:
    assert not any(_is_within(name, "torch") for name in _imports(ROOT / module))


@pytest.mark.parametrize("module", ["server.__main__", "server.app", "client.cli", "loadtest.cli"])
def test_importing_does_not_load_torch(module: str) -> None:
    program = f"import sys, {module}; print([name for name in sys.modules if name == 'torch'])"
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (0, "[]\n"), result.stderr
