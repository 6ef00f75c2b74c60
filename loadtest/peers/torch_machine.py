"""The device, its driver and its peak rates, measured with PyTorch.

``{"op": "describe", "device"}`` fails if the device does not exist. ``{"op": "ceilings"}`` returns
``bytes_per_second`` (read plus written) of a copy in the device's memory, and
``operations_per_second`` (multiplications plus additions) of a product of square matrices.
"""

import platform
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch

from loadtest.peers.json_lines import Message, serve

_PACKAGES = (
    "onnxruntime", "onnxruntime-gpu", "torch", "transformers", "sentence-transformers",
    "ctranslate2", "numpy", "nvidia-cublas", "nvidia-cudnn-cu13", "triune",
)  # fmt: skip
_REPETITIONS = 7
_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Per device: bytes to copy, and rows of a matrix.
_SIZES = {"cuda": (4 << 30, 8192), "cpu": (64 << 20, 512)}


def describe(message: Message) -> Message:
    """Describes the device and the installed versions."""
    device = torch.device(message["device"])
    about: dict[str, Any] = {"system": platform.platform(), "python": platform.python_version()}
    about["versions"] = {name: version for name in _PACKAGES if (version := _version(name))}
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError("PyTorch finds no CUDA device here")
        properties = torch.cuda.get_device_properties(device)
        about |= {
            "card": properties.name,
            "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda_of_torch": torch.version.cuda,
            "driver": _driver(),
        }
    return about


def ceilings(message: Message) -> Message:
    """Peak rates: the best of several repetitions."""
    device = torch.device(message["device"])
    num_bytes, size = _SIZES[device.type]
    copy_seconds = _copy_seconds(num_bytes, device)
    rates = {}
    for name, dtype in _TYPES.items():
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        seconds = _best_seconds(lambda a=left, b=right: a @ b, device)  # type: ignore[misc]
        rates[name] = 2 * size**3 / seconds
    return {"bytes_per_second": 2 * num_bytes / copy_seconds, "operations_per_second": rates}


def _copy_seconds(num_bytes: int, device: torch.device) -> float:
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device).random_(0, 255)
    target = torch.empty_like(source)
    return _best_seconds(lambda: target.copy_(source), device)


def _best_seconds(function: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(_REPETITIONS):
        _wait(device)
        started = time.perf_counter()
        function()
        _wait(device)
        times.append(time.perf_counter() - started)
    return min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _driver() -> str | None:
    """The driver's version; ``None`` if nvidia-ml-py is missing or fails."""
    try:
        import pynvml  # noqa: PLC0415

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # any failure means unknown
        return None


if __name__ == "__main__":
    serve({"describe": describe, "ceilings": ceilings})
