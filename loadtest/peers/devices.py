"""Device, precision and timing of the peers on PyTorch."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from loadtest.peers.json_lines import Message

_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def dtype_of(message: Message) -> Any:
    """The PyTorch dtype. Raises ``ValueError`` for a precision that PyTorch lacks."""
    precision = message.get("precision", "fp32")
    if precision not in _TYPES:
        raise ValueError(f"supports {', '.join(_TYPES)}, not {precision}")
    return _TYPES[precision]


def device_of(message: Message) -> str:
    """``cpu``, ``cuda`` or ``cuda:N``."""
    return str(message.get("device", "cpu"))


def wait(device: str) -> None:
    """Waits until ``device`` has finished its work, so that the clock is right."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def model_of(loader: Any, message: Message) -> Any:
    """Loads a model of ``transformers`` with the class ``loader``.

    A folder without weights has a model with random ones, which are made on the device.
    """
    torch.set_num_threads(message["threads"])
    options = {"dtype": dtype_of(message), "attn_implementation": "sdpa"}
    if has_weights(message["model"]):
        model: Any = loader.from_pretrained(message["model"], **options)
    else:
        with torch.device(device_of(message)):
            model = loader.from_config(AutoConfig.from_pretrained(message["model"]), **options)
    return model.eval().to(device_of(message))


def has_weights(folder: str) -> bool:
    """Whether ``folder`` has more than a model's settings; true for anything but a folder."""
    path = Path(folder)
    files = [each for ending in ("safetensors", "bin") for each in path.glob(f"*.{ending}")]
    return not path.is_dir() or bool(files)


def seconds_of(function: Callable[[], object], device: str) -> float:
    """Seconds that ``function`` takes, including its work on ``device``."""
    wait(device)
    started = time.perf_counter()
    function()
    wait(device)
    return time.perf_counter() - started
