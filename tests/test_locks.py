"""The lock files hold what pyproject.toml asks for, all that it leads to, and hashes of it."""

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
APART = "torch"  # has no hash: see requirements/torch.in

# What each file is of, besides what the server needs.
LOCKS = {
    "cpu": ("cpu",),
    "gpu": ("gpu",),
    "export": ("cpu", "export"),
    "dev": ("cpu", "export", "compare", "test", "dev"),
}
OTHERS = ("tools", "models")
# ONNX Runtime's two packages hold the same module: no machine may get both.
RUNTIMES = {"onnxruntime", "onnxruntime-gpu"}


def locked(name: str) -> dict[str, list[Requirement]]:
    """By package: one version, or several for machines that differ. Each with a hash."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    entries: dict[str, list[Requirement]] = {}
    for entry in re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", "").splitlines():
        line, *hashes = re.split(r"\s+--hash=", entry)
        assert hashes, f"{name}: {line} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", value) for value in hashes), line
        requirement = Requirement(line)
        entries.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return entries


def here(requirements: Iterable[Requirement], extra: str = "") -> Iterator[Requirement]:
    """Those that count on this machine."""
    for each in requirements:
        if each.marker is None or each.marker.evaluate({"extra": extra}):
            yield each


def asked(name: str) -> list[Requirement]:
    """What pyproject.toml says."""
    extras = [line for extra in LOCKS[name] for line in EXTRAS[extra]]
    return list(here(map(Requirement, [*PYPROJECT["project"]["dependencies"], *extras])))


@pytest.mark.parametrize("name", LOCKS)
def test_it_holds_what_is_asked_for(name: str) -> None:
    entries = locked(name)
    assert APART not in entries
    for requirement in asked(name):
        if requirement.name == APART:
            continue
        (entry,) = here(entries.get(canonicalize_name(requirement.name), []))
        assert entry.specifier == requirement.specifier, requirement


@pytest.mark.parametrize("name", LOCKS)
def test_it_holds_all_that_this_leads_to(name: str) -> None:
    entries, seen = locked(name), set()
    waiting = [(requirement, "") for requirement in asked(name)]
    while waiting:
        requirement, _ = waiting.pop()
        package = canonicalize_name(requirement.name)
        if (package, *requirement.extras) in seen:
            continue
        seen.add((package, *requirement.extras))
        assert package in entries or package == APART, f"{package} is missing: run `make lock`"
        try:
            lines = importlib.metadata.requires(package) or []
        except importlib.metadata.PackageNotFoundError:
            assert name == "gpu", package  # what only machines with a GPU have
            continue
        for extra in ("", *requirement.extras):
            waiting += [(each, extra) for each in here(map(Requirement, lines), extra)]
    assert len(seen) > len(asked(name))


@pytest.mark.parametrize("name", OTHERS)
def test_the_others_have_hashes_and_one_version_here(name: str) -> None:
    source = "requirements-models.txt" if name == "models" else f"requirements/{name}.in"
    entries = locked(name)
    for line in (ROOT / source).read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            (entry,) = here(entries[canonicalize_name(requirement.name)])
            assert entry.specifier == requirement.specifier


def test_the_files_agree_with_each_other() -> None:
    versions: dict[str, str] = {}
    for name in LOCKS:
        for package, entries in locked(name).items():
            for entry in here(entries):
                version = versions.setdefault(package, str(entry.specifier))
                assert str(entry.specifier) == version, f"{package} in {name}"


@pytest.mark.parametrize("name", LOCKS)
def test_one_runtime_and_no_other(name: str) -> None:
    wanted = "onnxruntime-gpu" if name == "gpu" else "onnxruntime"
    assert RUNTIMES & locked(name).keys() == {wanted}


def test_no_extra_but_its_own_brings_a_runtime() -> None:
    """So that any of them goes with ``cpu`` and with ``gpu``."""
    lines = {"": PYPROJECT["project"]["dependencies"], **EXTRAS}
    names = {extra: {Requirement(line).name for line in lines[extra]} for extra in lines}
    assert {extra for extra in names if RUNTIMES & names[extra]} == {"cpu", "gpu"}


def test_the_gpu_file_holds_what_cuda_needs() -> None:
    """ONNX Runtime 1.31 for CUDA 13 and cuDNN 9; its own extras leave out cuBLAS."""
    majors = {}
    for package, entries in locked("gpu").items():
        if package.startswith("nvidia-"):
            (specifier,) = next(here(entries)).specifier
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


def test_torch_is_installed_apart_and_in_the_version_asked_for() -> None:
    (torch,) = (line for line in EXTRAS["export"] if Requirement(line).name == APART)
    for file in ("Makefile", "Dockerfile"):
        assert re.findall(r"pip install (torch\S*)", (ROOT / file).read_text()) == [torch], file
