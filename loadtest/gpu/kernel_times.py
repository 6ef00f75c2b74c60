"""Where a device's time goes, from the intervals of its kernels. Pure."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

# By the names of kernels, in this order: ours (native/cuda/device/kernels.cc), ONNX Runtime's,
# cuBLAS's and cuDNN's.
_KINDS = (
    (
        "attention",
        r"attention|attend_|combine_parts|xqa|kernel_mha|fmha|flash|softmax|rotary|ropeappend"
        r"|unpackqkv|pastpresent|pastkv|getsequencelengths|addbiastranspose|transposectx|split_[fb]",
    ),
    ("products", r"gemm|gemv|cutlass|xmma|sm90_|sm80_|nvjet|linear|splitk|matmul|cublas"),
    ("norms", r"norm"),
    ("activations", r"activat|gelu|silu|swiglu|relu|sigmoid"),
)
PARTS = (*(kind for kind, _ in _KINDS), "other")
_SEPARATOR = "best_token"
"""The kernel that ends a decode step: the host, or the next step, waits for its output."""
_LONG_GAP = 10.0
_TOP = 12


class Kernel(NamedTuple):
    """An interval of the device: ``start`` and ``duration`` in microseconds."""

    name: str
    start: float
    duration: float

    @property
    def end(self) -> float:
        return self.start + self.duration


def kind_of(name: str) -> str:
    """The kind of work of a kernel, by its name."""
    lower = name.lower()
    return next((kind for kind, pattern in _KINDS if re.search(pattern, lower)), "other")


def decode_steps(kernels: Iterable[Kernel], num_steps: int) -> list[list[Kernel]]:
    """The last ``num_steps`` decode steps; each ends with its separator.

    A step begins with the first kernel after the previous separator, so that a kernel that
    prepares the next inputs belongs to the next step.

    Raises:
        ValueError: there are fewer steps.
    """
    steps: list[list[Kernel]] = [[]]
    for kernel in sorted(kernels, key=lambda each: each.start):
        steps[-1].append(kernel)
        if _SEPARATOR in kernel.name:
            steps.append([])
    whole = steps[:-1]
    if len(whole) < num_steps + 1:
        raise ValueError(f"{len(whole)} steps end with {_SEPARATOR}, expected {num_steps + 1}")
    return whole[-num_steps - 1 :]


def of_decode(kernels: Iterable[Kernel], num_steps: int) -> dict[str, Any]:
    """Milliseconds of a step, its parts and its pauses: means over the last steps.

    The largest pause of a step, and others of 10 microseconds or more, are those in which the
    device waits for the host: ``step`` less ``device``. Shorter ones are between kernels.
    """
    first, *steps = decode_steps(kernels, num_steps)
    waits, ends = [], first[-1].end
    for step in steps:
        gaps = pauses([Kernel("", ends, 0.0), *step])
        longest = max(gaps, default=0.0)
        waits.append(sum(gap for gap in gaps if gap >= min(_LONG_GAP, longest)))
        ends = max(kernel.end for kernel in step)
    span = ends - first[-1].end
    return _summary([kernel for step in steps for kernel in step], span, sum(waits), num_steps)


def of_batches(kernels: Iterable[Kernel], num_batches: int) -> dict[str, Any]:
    """The same of a batch of an encoder; only pauses of 10 microseconds or more are the host's."""
    ordered = sorted(kernels, key=lambda each: each.start)
    waits = sum(gap for gap in pauses(ordered) if gap >= _LONG_GAP)
    span = max(kernel.end for kernel in ordered) - ordered[0].start
    return _summary(ordered, span, waits, num_batches)


def pauses(kernels: Sequence[Kernel]) -> list[float]:
    """Times between the kernels, which are sorted by start and may overlap; microseconds."""
    found = []
    busy_until = kernels[0].end if kernels else 0.0
    for _, kernel in pairwise(kernels):
        if kernel.start > busy_until:
            found.append(kernel.start - busy_until)
        busy_until = max(busy_until, kernel.end)
    return found


def _summary(kernels: Sequence[Kernel], span: float, waits: float, count: int) -> dict[str, Any]:
    """Milliseconds per step or batch."""
    parts = dict.fromkeys(PARTS, 0.0)
    names: dict[str, list[float]] = defaultdict(list)
    for kernel in kernels:
        parts[kind_of(kernel.name)] += kernel.duration
        names[kernel.name].append(kernel.duration)
    each = 1e3 * count

    def of_name(item: tuple[str, list[float]]) -> float:
        return sum(item[1])

    top = sorted(names.items(), key=of_name, reverse=True)[:_TOP]
    return {
        "step": span / each,
        "device": (span - waits) / each,
        **{part: total / each for part, total in parts.items()},
        "launches": round(len(kernels) / count),
        "kernels": [
            {"name": name, "ms": sum(times) / each, "launches": len(times) / count}
            for name, times in top
        ],
    }


def kernels_of_trace(trace: Mapping[str, Any]) -> list[Kernel]:
    """The kernels and copies of a trace of PyTorch's profiler, in Chrome's format."""
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    return [
        Kernel(event["name"], float(event["ts"]), float(event["dur"]))
        for event in trace["traceEvents"]
        if event.get("ph") == "X" and event.get("cat") in kinds
    ]
