"""Mistral (Jiang et al. 2023), as ``transformers`` saves it: Llama with a sliding window."""

from export.checkpoint import Checkpoint
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import DecoderSizes, gated_table
from export.importers.rotary import rotary
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported


def import_mistral(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``MistralForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "MistralForCausalLM")
    check_supported(config, hidden_act=("silu",))
    shape = DecoderSizes.of(config)
    positions = rotary(config, shape.head_size)
    attention = shape.attention(
        input_bias=False,
        output_bias=False,
        rotary=positions.config,
        window=config.optional_integer("sliding_window", absent=4096),
    )
    model = shape.model((shape.layer(attention),) * shape.num_layers, positions.max_positions)
    return causal_checkpoint(folder, model, architecture, gated_table(model))
