"""GLM-4 (GLM Team 2024), GLM-Edge and GLM-4-0414.

Rotary positions rotate neighbouring dimensions of a part of each head; gates are packed. GLM-4-0414
also normalizes the outputs of sub-layers.
"""

from export.checkpoint import Checkpoint
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import HUGGING_FACE, TARGET, DecoderSizes, Names, gated_table
from export.importers.rotary import rotary, rotary_rows
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import NormOrder

_SOURCE = "model.layers.{n}"
NAMES: Names = {
    **HUGGING_FACE,
    f"{TARGET}.feed_forward.input": (f"{_SOURCE}.mlp.gate_up_proj",),
}
SANDWICH: Names = {
    **NAMES,
    f"{TARGET}.mixer_norm.before": (f"{_SOURCE}.input_layernorm",),
    f"{TARGET}.mixer_norm.after": (f"{_SOURCE}.post_self_attn_layernorm",),
    f"{TARGET}.feed_forward_norm.before": (f"{_SOURCE}.post_attention_layernorm",),
    f"{TARGET}.feed_forward_norm.after": (f"{_SOURCE}.post_mlp_layernorm",),
}


def import_glm(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``GlmForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return _import(folder, "GlmForCausalLM", NAMES, NormOrder.PRE)


def import_glm4(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Glm4ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    return _import(folder, "Glm4ForCausalLM", SANDWICH, NormOrder.SANDWICH)


def _import(
    folder: HuggingFaceFolder, supported: str, names: Names, order: NormOrder
) -> Checkpoint:
    config = folder.config
    architecture = architecture_of(config, supported)
    check_supported(config, hidden_act=("silu",))
    sizes = DecoderSizes.of(config, epsilon=1.5625e-7, head_size=128)
    positions = rotary(config, sizes.head_size, default_fraction=0.5)
    bias = config.flag("attention_bias", True)
    attention = sizes.attention(input_bias=bias, output_bias=False, rotary=positions.config)
    layer = sizes.layer(attention, norm_order=order)
    model = sizes.model((layer,) * sizes.num_layers, positions.max_positions)
    table = gated_table(model, names, qkv=rotary_rows(attention, interleaved=True))
    return causal_checkpoint(folder, model, architecture, table)
