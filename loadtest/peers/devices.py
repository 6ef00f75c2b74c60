"""Where a peer on PyTorch computes, and in what. Imported by the peers alone."""

import time
from collections.abc import Callable
from typing import Any

import torch

from loadtest.peers.json_lines import Message

_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def dtype_of(message: Message) -> Any:
    """Raises ``ValueError``: PyTorch has no such precision of its own."""
    precision = message.get("precision", "fp32")
    if precision not in _TYPES:
        raise ValueError(f"computes in {', '.join(_TYPES)}, not in {precision}")
    return _TYPES[precision]


def device_of(message: Message) -> str:
    """``cpu``, or one of CUDA."""
    return str(message.get("device", "cpu"))


def wait(device: str) -> None:
    """Until all that was asked of ``device`` is done: only then is the clock right."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def model_of(loader: Any, message: Message) -> Any:
    """A model of ``transformers``: ``loader`` is the class that reads its folder."""
    torch.set_num_threads(message["threads"])
    model: Any = loader.from_pretrained(
        message["model"], dtype=dtype_of(message), attn_implementation="sdpa"
    )
    return model.eval().to(device_of(message))


def seconds_of(work: Callable[[], object], device: str) -> float:
    """How long ``work`` takes there, until all of it is done."""
    wait(device)
    started = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - started
