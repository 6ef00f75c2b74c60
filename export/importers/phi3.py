"""Phi-3 (Abdin et al. 2024) and Phi-4-mini, as ``transformers`` saves them.

Llama with packed weights, of which a part of each head may turn. Long contexts (LongRoPE) have
frequencies of their own: those of the original context are taken, and hold up to its length.
"""

import torch

from export.checkpoint import Checkpoint
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import HUGGING_FACE, OURS, DecoderSizes, Names, gated_table
from export.importers.renaming import picked
from export.importers.rotary import rotary, rotary_dimensions_first
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported

NAMES: Names = {
    **HUGGING_FACE,
    f"{OURS}.mixer.qkv": ("model.layers.{n}.self_attn.qkv_proj",),
    f"{OURS}.feed_forward.input": ("model.layers.{n}.mlp.gate_up_proj",),
}


def import_phi3(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Phi3ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: as their names say.
    """
    config = folder.config
    architecture = architecture_of(config, "Phi3ForCausalLM")
    check_supported(config, hidden_act=("silu",))
    shape = DecoderSizes.of(config, epsilon=1e-5)
    positions = rotary(config, shape.head_size)
    attention = shape.attention(
        input_bias=False,
        output_bias=False,
        rotary=positions.config,
        window=config.optional_integer("sliding_window"),
    )
    model = shape.model((shape.layer(attention),) * shape.num_layers, positions.max_positions)
    order = rotary_dimensions_first(shape.head_size, positions.config)
    turned = shape.head_size * torch.arange(shape.num_heads + shape.num_kv_heads)[:, None] + order
    values = torch.arange(shape.num_kv_heads * shape.head_size) + turned.numel()
    rows = picked(torch.cat([turned.flatten(), values]))
    return causal_checkpoint(folder, model, architecture, gated_table(model, NAMES, qkv=rows))
