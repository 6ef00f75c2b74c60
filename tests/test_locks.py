"""Lock files pin what pyproject.toml requires and all transitive dependencies, with hashes."""

import importlib.metadata
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]
UNHASHED = "torch"  # has no hash: see requirements/torch.in

# Extras in each lock file, besides the server's own dependencies.
LOCKS = {
    "cpu": ("cpu",),
    "gpu": ("gpu",),
    "export": ("cpu", "export", "train", "kernels", "compare"),
    "dev": ("cpu", "export", "train", "kernels", "compare", "test", "dev"),
}
OTHER_LOCKS = ("tools", "models")
# Both ONNX Runtime packages install the same module: only one may be installed.
RUNTIMES = {"onnxruntime", "onnxruntime-gpu"}


def locked(name: str) -> dict[str, list[Requirement]]:
    """Requirements by package, several where platforms differ. Each must have a hash."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    entries: dict[str, list[Requirement]] = {}
    for entry in re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", "").splitlines():
        line, *hashes = re.split(r"\s+--hash=", entry)
        assert hashes, f"{name}: {line} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", value) for value in hashes), line
        requirement = Requirement(line)
        entries.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return entries


def applicable(requirements: Iterable[Requirement], extra: str = "") -> Iterator[Requirement]:
    """Requirements whose markers match this machine."""
    for each in requirements:
        if each.marker is None or each.marker.evaluate({"extra": extra}):
            yield each


def declared(name: str) -> list[Requirement]:
    """The requirements that pyproject.toml declares for a lock file."""
    extras = [line for extra in LOCKS[name] for line in EXTRAS[extra]]
    return list(applicable(map(Requirement, [*PYPROJECT["project"]["dependencies"], *extras])))


@pytest.mark.parametrize("name", LOCKS)
def test_lock_pins_declared_versions(name: str) -> None:
    entries = locked(name)
    assert UNHASHED not in entries
    for requirement in declared(name):
        if requirement.name == UNHASHED:
            continue
        (entry,) = applicable(entries.get(canonicalize_name(requirement.name), []))
        assert entry.specifier == requirement.specifier, requirement


@pytest.mark.parametrize("name", LOCKS)
def test_lock_contains_transitive_dependencies(name: str) -> None:
    entries, seen = locked(name), set()
    pending = [(requirement, "") for requirement in declared(name)]
    while pending:
        requirement, _ = pending.pop()
        package = canonicalize_name(requirement.name)
        if (package, *requirement.extras) in seen:
            continue
        seen.add((package, *requirement.extras))
        assert package in entries or package == UNHASHED, f"{package} is missing: run `make lock`"
        try:
            lines = importlib.metadata.requires(package) or []
        except importlib.metadata.PackageNotFoundError:
            assert name == "gpu", package  # installed on GPU machines only
            continue
        for extra in ("", *requirement.extras):
            pending += [(each, extra) for each in applicable(map(Requirement, lines), extra)]
    assert len(seen) > len(declared(name))


@pytest.mark.parametrize("name", OTHER_LOCKS)
def test_other_locks_have_hashes_and_one_version(name: str) -> None:
    source = "requirements-models.txt" if name == "models" else f"requirements/{name}.in"
    entries = locked(name)
    for line in (ROOT / source).read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            (entry,) = applicable(entries[canonicalize_name(requirement.name)])
            assert entry.specifier == requirement.specifier


def test_locks_agree_on_versions() -> None:
    versions: dict[str, str] = {}
    for name in LOCKS:
        for package, entries in locked(name).items():
            for entry in applicable(entries):
                version = versions.setdefault(package, str(entry.specifier))
                assert str(entry.specifier) == version, f"{package} in {name}"


@pytest.mark.parametrize("name", LOCKS)
def test_lock_has_one_onnxruntime_package(name: str) -> None:
    expected = "onnxruntime-gpu" if name == "gpu" else "onnxruntime"
    assert RUNTIMES & locked(name).keys() == {expected}


def test_only_cpu_and_gpu_extras_require_onnxruntime() -> None:
    """All other extras can be combined with either."""
    lines = {"": PYPROJECT["project"]["dependencies"], **EXTRAS}
    names = {extra: {Requirement(line).name for line in lines[extra]} for extra in lines}
    assert {extra for extra in names if RUNTIMES & names[extra]} == {"cpu", "gpu"}


def test_gpu_lock_has_the_cuda_libraries() -> None:
    """ONNX Runtime 1.31 needs CUDA 13 and cuDNN 9; its own extras omit cuBLAS."""
    majors = {}
    for package, entries in locked("gpu").items():
        if package.startswith("nvidia-"):
            (specifier,) = next(applicable(entries)).specifier
            majors[package] = int(specifier.version.partition(".")[0])
    assert majors == {
        "nvidia-cublas": 13,
        "nvidia-cuda-nvrtc": 13,
        "nvidia-cuda-runtime": 13,
        "nvidia-cudnn-cu13": 9,
        "nvidia-cufft": 12,
        "nvidia-curand": 10,
        "nvidia-nvjitlink": 13,
    }


def test_torch_version_is_the_same_everywhere() -> None:
    (torch,) = (line for line in EXTRAS["export"] if Requirement(line).name == UNHASHED)
    for file in ("Makefile", "Dockerfile"):
        found = re.findall(r"(?:pip install|PIP\)) (torch\S*)", (ROOT / file).read_text())
        assert found == [torch], file
