"""XGLM (Lin et al. 2021) and BioGPT (Luo et al. 2022): fairseq's pre-norm decoders.

Embeddings are scaled by the square root of the hidden size. XGLM adds sinusoids, BioGPT learned
positions; the first two rows of both are for padding.
"""

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import TARGET, DecoderSizes, Names, gated_table
from export.importers.norms import layer_norm
from export.importers.opt import NUM_PADDING_ROWS, without_padding_rows
from export.importers.support import MAX_TABLE_POSITIONS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import ModelConfig
from model.position_config import PositionKind

FIELDS = {
    "hidden_size": "d_model",
    "intermediate_size": "ffn_dim",
    "num_attention_heads": "attention_heads",
    "num_hidden_layers": "num_layers",
}
OUTPUTS = {"model": "lm_head", "biogpt": "output_projection"}


def import_xglm(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``XGLMForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config.with_names(**FIELDS)
    architecture = architecture_of(config, "XGLMForCausalLM")
    check_supported(config, add_cross_attention=(False,))
    model = _model(
        config,
        PositionKind.SINUSOIDAL,
        activation_field="activation_function",
        first_position=NUM_PADDING_ROWS,
    )
    ignored = ["model.embed_positions.weights"]  # the sinusoids, in old checkpoints
    table = gated_table(model, _names("model"))
    return causal_checkpoint(folder, model, architecture, table, ignored=ignored)


def import_biogpt(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``BioGptForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    architecture = architecture_of(folder.config, "BioGptForCausalLM")
    model = _model(folder.config, PositionKind.LEARNED, activation_field="hidden_act")
    table = gated_table(model, _names("biogpt"), positions=without_padding_rows)
    output = f"{OUTPUTS['biogpt']}.weight"
    return causal_checkpoint(folder, model, architecture, table, output=output)


def _model(
    config: Fields, positions: PositionKind, *, activation_field: str, first_position: int = 0
) -> ModelConfig:
    sizes = DecoderSizes.of(config, tied=True, norm=layer_norm(Fields({}, config.origin)))
    layer = sizes.layer(
        sizes.attention(input_bias=True, output_bias=True),
        activation=activation(config, activation_field, "gelu"),
        gated=False,
        bias=True,
    )
    is_scaled = config.flag("scale_embedding", True)
    return sizes.model(
        (layer,) * sizes.num_layers,
        config.positive("max_position_embeddings", maximum=MAX_TABLE_POSITIONS),
        positions=positions,
        first_position=first_position,
        embedding_scale=sizes.hidden_size**0.5 if is_scaled else 1.0,
    )


def _names(prefix: str) -> Names:
    layer = f"{prefix}.layers.{{n}}"
    return {
        "embedding.tokens": (f"{prefix}.embed_tokens",),
        "embedding.positions": (f"{prefix}.embed_positions",),
        "decoder.final_norm": (f"{prefix}.layer_norm",),
        "head.output": (OUTPUTS[prefix],),
        f"{TARGET}.mixer_norm": (f"{layer}.self_attn_layer_norm",),
        f"{TARGET}.mixer.qkv": tuple(f"{layer}.self_attn.{name}_proj" for name in "qkv"),
        f"{TARGET}.mixer.output": (f"{layer}.self_attn.out_proj",),
        f"{TARGET}.feed_forward_norm": (f"{layer}.final_layer_norm",),
        f"{TARGET}.feed_forward.input": (f"{layer}.fc1",),
        f"{TARGET}.feed_forward.output": (f"{layer}.fc2",),
    }
