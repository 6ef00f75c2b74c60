"""Phi-1, Phi-1.5 and Phi-2 (Li et al. 2023).

Attention and feed-forward read the same norm; rotary positions cover a part of each head.
"""

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import HUGGING_FACE, TARGET, DecoderSizes, Names, gated_table
from export.importers.norms import layer_norm
from export.importers.renaming import select_rows
from export.importers.rotary import rotary, rotary_dimensions_first, rotary_rows
from export.readers.hugging_face import HuggingFaceFolder
from model.config import Branches

_SOURCE = "model.layers.{n}"
NAMES: Names = {
    **HUGGING_FACE,
    "decoder.final_norm": ("model.final_layernorm",),
    f"{TARGET}.mixer.query_norm": (f"{_SOURCE}.self_attn.q_layernorm",),
    f"{TARGET}.mixer.key_norm": (f"{_SOURCE}.self_attn.k_layernorm",),
    f"{TARGET}.mixer.output": (f"{_SOURCE}.self_attn.dense",),
    f"{TARGET}.feed_forward_norm": (f"{_SOURCE}.input_layernorm",),
    f"{TARGET}.feed_forward.input": (f"{_SOURCE}.mlp.fc1",),
    f"{TARGET}.feed_forward.output": (f"{_SOURCE}.mlp.fc2",),
}


def import_phi(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``PhiForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "PhiForCausalLM")
    sizes = DecoderSizes.of(config, norm=layer_norm(config))
    positions = rotary(config, sizes.head_size, default_fraction=0.5)
    attention = sizes.attention(
        input_bias=True,
        output_bias=True,
        rotary=positions.config,
        head_norm=sizes.norm if config.flag("qk_layernorm", False) else None,
    )
    layer = sizes.layer(
        attention,
        activation=activation(config, "hidden_act", "gelu_new"),
        gated=False,
        bias=True,
        branches=Branches.PARALLEL,
    )
    layers = (layer,) * sizes.num_layers
    model = sizes.model(layers, positions.max_positions, head_bias=True)
    order = rotary_dimensions_first(sizes.head_size, positions.config)
    table = gated_table(model, NAMES, qkv=rotary_rows(attention), head_norm=select_rows(order))
    return causal_checkpoint(folder, model, architecture, table)
