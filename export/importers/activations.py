"""The activations of ``transformers``, by name."""

from export.readers.fields import Fields
from export.supported import lookup
from model.config import Activation

ACTIVATIONS = {
    "relu": Activation.RELU,
    "relu2": Activation.RELU_SQUARED,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
}


def activation(config: Fields, name: str, default: str | None = None) -> Activation:
    """The activation in the field ``name`` of ``config``.

    Raises:
        UnsupportedError: an unknown activation.
    """
    return lookup(ACTIVATIONS, config.text(name, default), f"{config.origin}: {name}")
