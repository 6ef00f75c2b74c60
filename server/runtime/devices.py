"""Which devices serve, and whether a graph really runs where it should."""

from collections.abc import Iterable
from typing import NamedTuple

from server.errors import StartupError

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

# What a GPU's provider leaves to the host on purpose: sizes and positions, a few numbers each.
_OF_SHAPES = {
    *("Shape", "Size", "Range", "Constant", "ConstantOfShape", "Cast", "Reshape", "Squeeze"),
    *("Unsqueeze", "Concat", "Gather", "Slice", "Split", "Add", "Sub", "Mul", "Div", "Mod"),
    *("Min", "Max", "Neg", "Abs", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
    *("And", "Or", "Not", "Where", "Expand", "Identity", "ReduceMax", "ReduceMin", "ReduceProd"),
}


class Device(NamedTuple):
    """``cuda:1`` is the kind "cuda" and the number 1."""

    kind: str
    number: int

    @property
    def provider(self) -> str:
        """As ONNX Runtime names it."""
        return PROVIDERS[self.kind]


class Placed(NamedTuple):
    """A node of a loaded graph and the provider that runs it."""

    provider: str
    operator: str


def parse_device(name: str) -> Device:
    """``cpu``, ``cuda`` or ``cuda:N``. Raises ``StartupError`` for anything else."""
    kind, separator, index = name.partition(":")
    if kind not in PROVIDERS or (separator and not (kind == "cuda" and index.isdecimal())):
        raise StartupError(f"unknown device {name!r}: use cpu, cuda or cuda:N")
    return Device(kind, int(index or 0))


def parse_devices(names: str) -> tuple[str, ...]:
    """Names between commas, each for a replica of every model.

    Raises:
        StartupError: one is unknown, a GPU is named twice, or kinds are mixed.
    """
    found = tuple(name.strip() for name in names.split(","))
    devices = [parse_device(name) for name in found]
    if len({device.kind for device in devices}) > 1:
        raise StartupError(f"devices {names!r} are of several kinds: a bundle is made for one")
    if devices[0].kind == "cuda" and len(set(devices)) < len(devices):
        raise StartupError(f"devices {names!r} name a GPU twice")
    return found


def left_to_the_host(device: Device, nodes: Iterable[Placed]) -> list[str]:
    """The operators, in order, that should run on ``device`` but do not.

    Sizes and positions may be left to the host; a matrix product or attention may not.
    """
    return sorted(
        {
            node.operator
            for node in nodes
            if node.provider != device.provider and node.operator not in _OF_SHAPES
        }
    )


def provider_options(device: Device, *, records: bool) -> dict[str, str]:
    """What a provider is loaded with: https://onnxruntime.ai/docs/execution-providers.

    Whatever is not said stays at its default: neither NHWC layouts nor tuning of operators.
    """
    if device.kind == "cpu":
        return {}
    return {
        "device_id": str(device.number),
        # The cache is a few large pieces: growing by powers of two would round them up.
        "arena_extend_strategy": "kSameAsRequested",
        # fp32 is asked for where 16 bits are not enough, so not to compute in 19.
        "use_tf32": "0",
        "enable_cuda_graph": "1" if records else "0",
    }
