"""Persimmon (Adept 2023): squared ReLU, normalised queries and keys, partly rotated heads."""

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import HUGGING_FACE, TARGET, DecoderSizes, Names, gated_table
from export.importers.norms import layer_norm
from export.importers.renaming import rows_by_kind, select_rows
from export.importers.rotary import rotary, rotary_dimensions_first
from export.readers.hugging_face import HuggingFaceFolder

_SOURCE = "model.layers.{n}"
NAMES: Names = {
    **HUGGING_FACE,
    "decoder.final_norm": ("model.final_layernorm",),
    f"{TARGET}.mixer.qkv": (f"{_SOURCE}.self_attn.query_key_value",),
    f"{TARGET}.mixer.query_norm": (f"{_SOURCE}.self_attn.q_layernorm",),
    f"{TARGET}.mixer.key_norm": (f"{_SOURCE}.self_attn.k_layernorm",),
    f"{TARGET}.mixer.output": (f"{_SOURCE}.self_attn.dense",),
    f"{TARGET}.feed_forward.input": (f"{_SOURCE}.mlp.dense_h_to_4h",),
    f"{TARGET}.feed_forward.output": (f"{_SOURCE}.mlp.dense_4h_to_h",),
}


def import_persimmon(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``PersimmonForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "PersimmonForCausalLM")
    sizes = DecoderSizes.of(config, norm=layer_norm(config))
    positions = rotary(config, sizes.head_size, default_fraction=0.5)
    attention = sizes.attention(
        input_bias=True,
        output_bias=True,
        rotary=positions.config,
        head_norm=sizes.norm if config.flag("qk_layernorm", True) else None,
    )
    layer = sizes.layer(
        attention, activation=activation(config, "hidden_act", "relu2"), gated=False, bias=True
    )
    model = sizes.model((layer,) * sizes.num_layers, positions.max_positions)
    order = rotary_dimensions_first(sizes.head_size, positions.config)
    rows = rows_by_kind(sizes.num_heads, sizes.head_size, order)
    table = gated_table(model, NAMES, qkv=select_rows(rows), head_norm=select_rows(order))
    return causal_checkpoint(folder, model, architecture, table)
