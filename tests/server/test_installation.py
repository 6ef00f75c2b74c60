"""What is said where ONNX Runtime, or the right one of two, is not installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from server.installation import CPU, GPU, what_is_missing

ROOT = Path(__file__).resolve().parents[2]

# Python finds packages here as in any folder of packages; this one hides the real one.
SERVER_WITHOUT_RUNTIME = f"""
import importlib.metadata, sys
real = importlib.metadata.version

def version(name):
    if name in {[CPU, GPU]}:
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)

importlib.metadata.version = version
sys.modules["onnxruntime"] = None  # an import of it fails
import typer, server.__main__
typer.run(server.__main__.main)
"""


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_neither_is_installed(device: str) -> None:
    reason = what_is_missing(device, set())
    assert reason is not None
    assert "triune[cpu]" in reason
    assert "triune[gpu]" in reason


@pytest.mark.parametrize("installed", [{CPU}, {GPU}, {CPU, GPU}])
def test_any_runs_on_a_cpu(installed: set[str]) -> None:
    assert what_is_missing("cpu", installed) is None


@pytest.mark.parametrize("device", ["cuda", "cuda:0,cuda:1"])
def test_cuda_needs_the_gpus_alone(device: str) -> None:
    assert what_is_missing(device, {GPU}) is None
    assert "for CPUs only" in (what_is_missing(device, {CPU}) or "")
    both = what_is_missing(device, {CPU, GPU}) or ""
    assert "both installed" in both
    assert f"pip uninstall {CPU} {GPU}" in both


def test_the_server_says_so_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVER_WITHOUT_RUNTIME, "--bundles", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "no ONNX Runtime is installed" in done.stderr
    assert "Traceback" not in done.stderr
