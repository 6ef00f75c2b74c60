"""Checks that the installed ONNX Runtime supports the device, before it is imported.

The packages for CPUs and for GPUs contain the same module, so each is an optional extra. If both
are installed, the one installed last has overwritten the other's files.
"""

import ctypes
import importlib.metadata
import importlib.util
from collections.abc import Set
from pathlib import Path

from server.errors import StartupError

CPU, GPU = "onnxruntime", "onnxruntime-gpu"
MODULE = "onnxruntime"
# Part of the NVIDIA driver; no Python package contains this library.
DRIVER = "libcuda.so.1"


def check_installation(device: str) -> None:
    """Checks that this installation and this machine support a device.

    Args:
        device: the device, in the command line's notation.

    Raises:
        StartupError: the device cannot be used; the message says what to install.
    """
    installed = {name for name in (CPU, GPU) if _provides_module(name)}
    reason = installation_problem(device, installed)
    if reason is None and device.startswith("cuda"):
        reason = _driver_problem()
    if reason is not None:
        raise StartupError(f"device {device!r} was asked for, but {reason}")


def installation_problem(device: str, installed: Set[str]) -> str | None:
    """Why ``device`` cannot be used with these packages; None if it can."""
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
        f"{CPU} and {GPU} are both installed and overwrite each other's files: "
        f"`pip uninstall {CPU} {GPU}`, then `pip install '.[gpu]'` in this project's folder"
    )


def _provides_module(name: str) -> bool:
    """Whether package ``name`` is installed in the folder that the module is imported from."""
    module = importlib.util.find_spec(MODULE)
    if module is None or module.origin is None:
        return False
    try:
        folder = importlib.metadata.distribution(name).locate_file(MODULE)
    except importlib.metadata.PackageNotFoundError:
        return False
    return Path(str(folder)).resolve() == Path(module.origin).resolve().parent


def _driver_problem() -> str | None:
    """Why the NVIDIA driver cannot be used; None if it reports a GPU."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return f"this machine has no NVIDIA driver: {DRIVER} is not found"
    count = ctypes.c_int(0)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0:
        return f"the NVIDIA driver reports error {status}"
    return None if count.value > 0 else "the NVIDIA driver finds no GPU"
