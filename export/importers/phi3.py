"""Phi-3 (Abdin et al. 2024) and Phi-4-mini, as ``transformers`` saves them.

Llama with packed weights; rotary positions may cover a part of each head. LongRoPE has other
frequencies for long contexts: the importer takes those of the original context and limits
positions to it.
"""

from export.checkpoint import Checkpoint
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import HUGGING_FACE, TARGET, DecoderSizes, Names, gated_table
from export.importers.rotary import rotary, rotary_rows
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported

NAMES: Names = {
    **HUGGING_FACE,
    f"{TARGET}.mixer.qkv": ("model.layers.{n}.self_attn.qkv_proj",),
    f"{TARGET}.feed_forward.input": ("model.layers.{n}.mlp.gate_up_proj",),
}


def import_phi3(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Phi3ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "Phi3ForCausalLM")
    check_supported(config, hidden_act=("silu",))
    shape = DecoderSizes.of(config, epsilon=1e-5)
    positions = rotary(config, shape.head_size, default_fraction=1.0)
    attention = shape.attention(
        input_bias=False,
        output_bias=False,
        rotary=positions.config,
        window=config.optional_integer("sliding_window"),
    )
    model = shape.model((shape.layer(attention),) * shape.num_layers, positions.max_positions)
    table = gated_table(model, NAMES, qkv=rotary_rows(attention))
    return causal_checkpoint(folder, model, architecture, table)
