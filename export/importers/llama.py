"""Llama (Touvron et al. 2023) and models of its architecture, such as SmolLM2."""

from export.checkpoint import Checkpoint
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import DecoderSizes, gated_table
from export.importers.rotary import rotary
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported


def import_llama(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``LlamaForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "LlamaForCausalLM")
    check_supported(config, hidden_act=("silu",))
    shape = DecoderSizes.of(config)
    positions = rotary(config, shape.head_size)
    bias = config.flag("attention_bias", False)
    attention = shape.attention(input_bias=bias, output_bias=bias, rotary=positions.config)
    layer = shape.layer(attention, bias=config.flag("mlp_bias", False))
    model = shape.model((layer,) * shape.num_layers, positions.max_positions)
    return causal_checkpoint(folder, model, architecture, gated_table(model))
