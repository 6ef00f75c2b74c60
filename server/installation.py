"""Whether what is installed can do what is asked, said before ONNX Runtime is imported.

ONNX Runtime for CPUs and for GPUs are two packages that hold one module, so neither comes without
its extra, and where both were installed, the one that came last is in place.
"""

import ctypes
import importlib.metadata
import importlib.util
from collections.abc import Set
from pathlib import Path

from server.errors import StartupError

CPU, GPU = "onnxruntime", "onnxruntime-gpu"
MODULE = "onnxruntime"
# Part of the driver, and of no package.
DRIVER = "libcuda.so.1"


def check_installation(device: str) -> None:
    """Refuses a device that this installation or this machine cannot have.

    Args:
        device: as on the command line.

    Raises:
        StartupError: says what to install.
    """
    found = {name for name in (CPU, GPU) if _is_in_place(name)}
    reason = what_is_missing(device, found)
    if reason is None and device.startswith("cuda"):
        reason = _why_no_driver()
    if reason is not None:
        raise StartupError(f"device {device!r} was asked for, but {reason}")


def what_is_missing(device: str, installed: Set[str]) -> str | None:
    """What keeps ``device`` from being used where these packages are installed."""
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
        f"{CPU} and {GPU} are both installed, and hold the same files: "
        f"`pip uninstall {CPU} {GPU}`, then `pip install '.[gpu]'` in this project's folder"
    )


def _is_in_place(name: str) -> bool:
    """Whether package ``name`` put its files where the module is imported from."""
    module = importlib.util.find_spec(MODULE)
    if module is None or module.origin is None:
        return False
    try:
        place = importlib.metadata.distribution(name).locate_file(MODULE)
    except importlib.metadata.PackageNotFoundError:
        return False
    return Path(str(place)).resolve() == Path(module.origin).resolve().parent


def _why_no_driver() -> str | None:
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return f"this machine has no NVIDIA driver: {DRIVER} is not found"
    count = ctypes.c_int(0)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0:
        return f"the NVIDIA driver reports error {status}"
    return None if count.value > 0 else "the NVIDIA driver finds no GPU"
