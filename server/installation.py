"""Checks, before ONNX Runtime is imported, that the installation supports the requested device.

The packages ``onnxruntime`` and ``onnxruntime-gpu`` contain the same module. Each is an extra of
this project; if both are installed, the files of the last one are used.
"""

import ctypes
import importlib.metadata
import importlib.util
from collections.abc import Set
from pathlib import Path

from server.errors import StartupError

CPU, GPU = "onnxruntime", "onnxruntime-gpu"
MODULE = "onnxruntime"
# Part of NVIDIA's driver; no Python package contains it.
DRIVER = "libcuda.so.1"


def check_installation(device: str) -> None:
    """Rejects a device that the installed packages or this machine do not support.

    Args:
        device: the value of ``--device``.

    Raises:
        StartupError: the message says what to install.
    """
    found = {name for name in (CPU, GPU) if _provides_module(name)}
    reason = missing_requirement(device, found)
    if reason is None and device.startswith("cuda"):
        reason = _driver_problem()
    if reason is not None:
        raise StartupError(f"device {device!r} cannot be used: {reason}")


def missing_requirement(device: str, installed: Set[str]) -> str | None:
    """What ``device`` lacks, given the installed packages; ``None`` if it can be used."""
    if not installed:
        return (
            "no ONNX Runtime is installed: in this project's folder, `pip install '.[cpu]'` for a "
            "CPU, `pip install '.[gpu]'` for an NVIDIA GPU"
        )
    if not device.startswith("cuda") or installed == {GPU}:
        return None
    if installed == {CPU}:
        return (
            "ONNX Runtime is installed for CPUs only: "
            f"`pip uninstall {CPU}`, then `pip install '.[gpu]'` in this project's folder"
        )
    return (
        f"{CPU} and {GPU} are both installed and contain the same files: "
        f"`pip uninstall {CPU} {GPU}`, then `pip install '.[gpu]'` in this project's folder"
    )


def _provides_module(name: str) -> bool:
    """Whether the module is imported from the files of package ``name``."""
    module = importlib.util.find_spec(MODULE)
    if module is None or module.origin is None:
        return False
    try:
        place = importlib.metadata.distribution(name).locate_file(MODULE)
    except importlib.metadata.PackageNotFoundError:
        return False
    return Path(str(place)).resolve() == Path(module.origin).resolve().parent


def _driver_problem() -> str | None:
    """Why the NVIDIA driver cannot be used; ``None`` if it works and finds a GPU."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return f"this machine has no NVIDIA driver: {DRIVER} is not found"
    count = ctypes.c_int(0)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0:
        return f"the NVIDIA driver reports error {status}"
    return None if count.value > 0 else "the NVIDIA driver finds no GPU"
