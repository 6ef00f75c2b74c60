"""Device names, execution providers, and the check that a graph runs on its device."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from server.errors import StartupError

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

# Operators that the CUDA provider assigns to the host on purpose: they compute shapes and
# positions, a few numbers each.
_SHAPE_OPERATORS = {
    *("Shape", "Size", "Range", "Constant", "ConstantOfShape", "Cast", "Reshape", "Squeeze"),
    *("Unsqueeze", "Concat", "Gather", "Slice", "Split", "Add", "Sub", "Mul", "Div", "Mod", "Pow"),
    *("Min", "Max", "Neg", "Abs", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
    *("And", "Or", "Not", "Where", "Expand", "Identity", "ReduceMax", "ReduceMin", "ReduceProd"),
}


class Device(NamedTuple):
    """A device of the command line: ``cuda:1`` is ``Device("cuda", 1)``."""

    kind: str
    number: int

    @property
    def provider(self) -> str:
        """ONNX Runtime's name for the execution provider."""
        return PROVIDERS[self.kind]


class NodePlacement(NamedTuple):
    """A node of a loaded graph and the execution provider that runs it."""

    provider: str
    operator: str


def parse_device(name: str) -> Device:
    """Parses ``cpu``, ``cuda`` or ``cuda:N``. Raises ``StartupError`` for anything else."""
    kind, separator, index = name.partition(":")
    if kind not in PROVIDERS or (separator and not (kind == "cuda" and index.isdecimal())):
        raise StartupError(f"unknown device {name!r}: use cpu, cuda or cuda:N")
    return Device(kind, int(index or 0))


def parse_devices(names: str) -> tuple[str, ...]:
    """Splits comma-separated device names. Each device gets a replica of every model.

    Raises:
        StartupError: a name is unknown, a GPU is named twice, or the kinds differ.
    """
    found = tuple(name.strip() for name in names.split(","))
    devices = [parse_device(name) for name in found]
    if len({device.kind for device in devices}) > 1:
        raise StartupError(
            f"devices {names!r} are of several kinds: a bundle is exported for one kind"
        )
    if devices[0].kind == "cuda" and len(set(devices)) < len(devices):
        raise StartupError(f"devices {names!r} name a GPU twice")
    return found


def misplaced_operators(device: Device, nodes: Iterable[NodePlacement]) -> list[str]:
    """Returns the operators, sorted, that should run on the provider of ``device`` but do not.

    Shape computations may run on the host; a matrix product or attention may not.
    """
    return sorted(
        {
            node.operator
            for node in nodes
            if node.provider != device.provider and node.operator not in _SHAPE_OPERATORS
        }
    )


def host_inputs(session: Any, device: Device | None) -> set[str]:
    """Returns the inputs that the host reads, of a session on a GPU; none on other devices."""
    if device is None or device.kind != "cuda":
        return set()
    infos = zip(session.get_inputs(), session.get_input_memory_infos(), strict=True)
    return {node.name for node, info in infos if info.name.lower() != "cuda"}


def provider_options(device: Device, *, records: bool, stream: int | None = None) -> dict[str, str]:
    """Returns execution provider options: https://onnxruntime.ai/docs/execution-providers.

    Options not listed here keep their defaults, such as NHWC layouts and operator tuning (off).

    Args:
        device: the device of the session.
        records: whether the session may record CUDA graphs.
        stream: the address of the CUDA stream for all runs; None lets the session create one.
    """
    if device.kind == "cpu":
        return {}
    options = {
        "device_id": str(device.number),
        # The cache is a few large allocations; the default rounds each up to a power of two.
        "arena_extend_strategy": "kSameAsRequested",
        # A graph in fp32 needs more than the 10-bit mantissa of TF32.
        "use_tf32": "0",
        "enable_cuda_graph": "1" if records else "0",
    }
    if stream is not None:
        options["user_compute_stream"] = str(stream)
    return options
