"""Mistral (Jiang et al. 2023), as ``transformers`` saves it: Llama with a sliding window.

Ministral 3 (Mistral AI 2025) has YaRN's positions. Beyond the context that they stretch, it scales
queries by position; here, that context is its limit.
"""

from export.checkpoint import Checkpoint
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import DecoderSizes, gated_table
from export.importers.rotary import Rotary, rope_parameters, rotary
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported

# Defaults of the configuration's class.
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def import_mistral(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``MistralForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "MistralForCausalLM")
    sizes = DecoderSizes.of(config)
    positions = rotary(config, sizes.head_size)
    window = config.optional_integer("sliding_window", absent=4096)
    return _import(folder, architecture, sizes, positions, window)


def import_ministral3(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Ministral3ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config.with_defaults(rope_parameters=YARN)  # which rope_scaling replaces
    architecture = architecture_of(config, "Ministral3ForCausalLM")
    sizes = DecoderSizes.of(config, epsilon=1e-5, head_size=128)
    positions = rotary(config, sizes.head_size, default_base=1_000_000.0)
    limit = min(positions.max_positions, _unscaled_positions(config))
    window = config.optional_integer("sliding_window")
    return _import(folder, architecture, sizes, Rotary(positions.config, limit), window)


def _unscaled_positions(config: Fields) -> int:
    """The number of positions whose queries are not scaled, as in Llama 4."""
    parameters = rope_parameters(config)
    if parameters.number("llama_4_scaling_beta") == 0:
        return config.positive("max_position_embeddings")
    return parameters.positive("original_max_position_embeddings")


def _import(
    folder: HuggingFaceFolder,
    architecture: str,
    sizes: DecoderSizes,
    positions: Rotary,
    window: int | None,
) -> Checkpoint:
    check_supported(folder.config, hidden_act=("silu",))
    attention = sizes.attention(
        input_bias=False, output_bias=False, rotary=positions.config, window=window
    )
    model = sizes.model((sizes.layer(attention),) * sizes.num_layers, positions.max_positions)
    return causal_checkpoint(folder, model, architecture, gated_table(model))
