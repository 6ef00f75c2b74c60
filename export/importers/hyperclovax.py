"""HyperCLOVA X (NAVER 2025): Granite with norms of the outputs of sub-layers, unless switched off.

Weights absorb the multipliers of residual branches and logits; here, that of logits is a factor.
"""

from dataclasses import replace

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import HUGGING_FACE, TARGET, DecoderSizes, Names, gated_table
from export.importers.renaming import scaled, stack_rows
from export.importers.rotary import rotary
from export.readers.hugging_face import HuggingFaceFolder
from model.config import NormOrder

_SOURCE = "model.layers.{n}"
NAMES: Names = {
    **HUGGING_FACE,
    f"{TARGET}.mixer_norm.before": (f"{_SOURCE}.input_layernorm",),
    f"{TARGET}.mixer_norm.after": (f"{_SOURCE}.post_norm1",),
    f"{TARGET}.feed_forward_norm.before": (f"{_SOURCE}.post_attention_layernorm",),
    f"{TARGET}.feed_forward_norm.after": (f"{_SOURCE}.post_norm2",),
}


def import_hyperclovax(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``HyperCLOVAXForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "HyperCLOVAXForCausalLM")
    sizes = DecoderSizes.of(config)
    positions = rotary(config, sizes.head_size)
    bias = config.flag("attention_bias", False)
    attention = sizes.attention(
        input_bias=bias,
        output_bias=bias,
        rotary=positions.config,
        scale=config.optional_number("attention_multiplier"),
    )
    has_post_norm = config.flag("use_post_norm", True)
    layer = sizes.layer(
        attention,
        activation=activation(config, "hidden_act", "silu"),
        bias=config.flag("mlp_bias", False),
        norm_order=NormOrder.SANDWICH if has_post_norm else NormOrder.PRE,
    )
    model = sizes.model(
        (layer,) * sizes.num_layers,
        positions.max_positions,
        embedding_scale=config.number("embedding_multiplier", 1.0),
    )
    branch = scaled(config.number("residual_multiplier", 1.0))
    table = gated_table(
        model,
        NAMES,
        output=stack_rows if has_post_norm else branch,
        final_norm=scaled(config.number("logits_scaling", 1.0)),
    )
    table = [
        replace(entry, transform=branch) if entry.target.endswith("_norm.after.weight") else entry
        for entry in table
    ]
    return causal_checkpoint(folder, model, architecture, table)
