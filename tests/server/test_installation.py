"""Error messages when ONNX Runtime, or the right package of it, is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from server.installation import CPU, DRIVER, GPU, installation_problem

ROOT = Path(__file__).resolve().parents[2]

# Runs the server with onnxruntime hidden.
SERVER_WITHOUT_RUNTIME = """
import importlib.util

real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "onnxruntime" else real(name, *rest)
import server.__main__
server.__main__.app()
"""


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_missing_runtime_error_names_both_extras(device: str) -> None:
    reason = installation_problem(device, set())
    assert reason is not None
    assert ".[cpu]" in reason
    assert ".[gpu]" in reason


@pytest.mark.parametrize("installed", [{CPU}, {GPU}, {CPU, GPU}])
def test_cpu_accepts_any_runtime_package(installed: set[str]) -> None:
    assert installation_problem("cpu", installed) is None


@pytest.mark.parametrize("device", ["cuda", "cuda:0,cuda:1"])
def test_cuda_requires_only_the_gpu_package(device: str) -> None:
    assert installation_problem(device, {GPU}) is None
    assert "for CPUs only" in (installation_problem(device, {CPU}) or "")
    both = installation_problem(device, {CPU, GPU}) or ""
    assert "both installed" in both
    assert f"pip uninstall {CPU} {GPU}" in both


def test_server_reports_a_missing_runtime_in_one_line(tmp_path: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", SERVER_WITHOUT_RUNTIME, "--bundles", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert completed.returncode == 1
    assert "no ONNX Runtime is installed" in completed.stderr
    assert "Traceback" not in completed.stderr


def _install_fake(folder: Path, package: str) -> None:
    """Installs a fake ``package``: metadata and an empty module."""
    metadata = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (folder / "onnxruntime").mkdir(exist_ok=True)
    (folder / "onnxruntime" / "__init__.py").touch()


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ((GPU,), (CPU,), DRIVER),  # the module is imported from the first folder
        ((CPU,), (GPU,), "for CPUs only"),
        ((CPU, GPU), (), "both installed"),
    ],
)
def test_checks_the_package_that_provides_the_module(
    tmp_path: Path, first: tuple[str, ...], second: tuple[str, ...], message: str
) -> None:
    for folder, packages in (("first", first), ("second", second)):
        for package in packages:
            _install_fake(tmp_path / folder, package)
    paths = [tmp_path / "first", tmp_path / "second", ROOT]
    program = """
import server.installation
server.installation.DRIVER = "libcuda.so.1 of a machine without one"
server.installation.check_installation("cuda")
"""
    completed = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert completed.returncode == 1
    assert "StartupError" in completed.stderr
    assert message in completed.stderr
