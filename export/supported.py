"""Checks whose error messages list what is supported."""

from collections.abc import Mapping
from typing import TypeVar

from export.errors import UnsupportedError
from export.readers.fields import Fields
from model.bundle import Device, Precision
from model.config import Kind, ModelConfig
from model.recurrent_config import CellKind

_T = TypeVar("_T")


def lookup(table: Mapping[str, _T], name: str, what: str) -> _T:
    """``table[name]``.

    Raises:
        UnsupportedError: no such entry; the message lists the existing ones.
    """
    if name not in table:
        raise UnsupportedError(f"{what} {name!r} is not supported; supported: {', '.join(table)}")
    return table[name]


def check_supported(config: Fields, **allowed: tuple[object, ...]) -> None:
    """Checks that each given field is absent or has one of the ``allowed`` values.

    Raises:
        UnsupportedError: lists every field with another value.
    """
    problems = [
        f"{name} {config[name]!r} is not supported; supported: {', '.join(map(repr, values))}"
        for name, values in allowed.items()
        if config.get(name) is not None and config[name] not in values
    ]
    if problems:
        raise UnsupportedError(f"{config.origin}: {'; '.join(problems)}")


def check_device_supported(config: ModelConfig, device: Device, precision: Precision) -> None:
    """Checks that ``device`` has the operators for a model of ``config`` in ``precision``.

    Raises:
        UnsupportedError: it lacks operators.
    """
    stacks = [stack for stack in (config.encoder, config.decoder) if stack is not None]
    attentions = [layer.attention for stack in stacks for layer in stack.layers if layer.attention]
    has_values = any(x.relative is not None and x.relative.values for x in attentions)
    if device == Device.CUDA and has_values:
        raise UnsupportedError(
            "--device cuda: relative positions of values need the weights of attention, which ONNX "
            "Runtime's operator returns on CPUs only"
        )
    if device == Device.CUDA and config.kind == Kind.ENCODER and config.reads_recordings:
        raise UnsupportedError("--device cuda: encoders of speech are supported on CPUs only")
    if device == Device.CUDA and config.vision is not None:
        raise UnsupportedError("--device cuda: images in prompts are supported on CPUs only")
    has_lstm = config.recurrent is not None and config.recurrent.cell == CellKind.LSTM
    if device == Device.CUDA and precision == Precision.BF16 and has_lstm:
        raise UnsupportedError("--precision bf16: ONNX Runtime has no LSTM in it on --device cuda")
