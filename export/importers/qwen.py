"""Qwen2 and Qwen3 (Qwen Team 2024 and 2025), as ``transformers`` saves them.

Llama with windows in some layers; Qwen2 has biases on queries, keys and values, Qwen3 normalises
the queries and keys of each head.
"""

from typing import Any

from export.checkpoint import Checkpoint
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import Shape, gated_table
from export.importers.patterns import windows
from export.importers.rotary import rotary
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported


def import_qwen2(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Qwen2ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: as their names say.
    """
    architecture = architecture_of(folder.config, "Qwen2ForCausalLM")
    shape = Shape.of(folder.config)
    return _import(folder, architecture, shape, input_bias=True, output_bias=False)


def import_qwen3(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Qwen3ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: as their names say.
    """
    architecture = architecture_of(folder.config, "Qwen3ForCausalLM")
    shape = Shape.of(folder.config, head_size=128)
    bias = folder.config.flag("attention_bias", False)
    return _import(
        folder, architecture, shape, input_bias=bias, output_bias=bias, head_norm=shape.norm
    )


def _import(
    folder: HuggingFaceFolder, architecture: str, shape: Shape, **attention: Any
) -> Checkpoint:
    config = folder.config
    check_supported(config, hidden_act=("silu",))
    positions = rotary(config, shape.head_size)
    layers = tuple(
        shape.layer(shape.attention(rotary=positions.config, window=window, **attention))
        for window in windows(config, shape.num_layers)
    )
    model = shape.model(layers, positions.max_positions)
    return causal_checkpoint(folder, model, architecture, gated_table(model))
