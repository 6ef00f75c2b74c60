"""BLOOM (BigScience 2022), as ``transformers`` saves it.

It has ALiBi; queries, keys and values are packed head by head.
"""

from export.checkpoint import Checkpoint
from export.importers.causal import OUTPUT_MATRIX, architecture_of, causal_checkpoint
from export.importers.renaming import (
    Rename,
    Transform,
    affine,
    linear,
    per_layer,
    prefixed,
    rows_by_kind,
    select_rows,
)
from export.importers.support import MAX_LAYERS, divide_heads
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import (
    Activation,
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    HeadKind,
    Kind,
    LayerConfig,
    ModelConfig,
    NormConfig,
    NormKind,
    NormOrder,
    StackConfig,
)
from model.position_config import PositionConfig, PositionKind, RelativeBiasConfig, RelativeBiasKind

TOKENS = "word_embeddings.weight"
_TARGET, _SOURCE = "decoder.layers.{n}", "h.{n}"
# The training length: ALiBi has no limit, and configurations give none.
TRAINED_POSITIONS = 2048


def import_bloom(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``BloomForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "BloomForCausalLM")
    check_supported(config, apply_residual_connection_post_layernorm=(False,))
    hidden_size = config.positive("hidden_size", config.positive("n_embed", 64))
    num_heads = config.positive("n_head", config.positive("num_attention_heads", 8))
    num_layers = config.positive("n_layer", 2, maximum=MAX_LAYERS)
    head_size = divide_heads(config.origin, hidden_size, num_heads)
    norm = NormConfig(kind=NormKind.LAYER, epsilon=config.number("layer_norm_epsilon", 1e-5))
    layer = LayerConfig(
        attention=AttentionConfig(
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_size=head_size,
            input_bias=True,
            output_bias=True,
            bias=RelativeBiasConfig(kind=RelativeBiasKind.LINEAR),
        ),
        feed_forward=FeedForwardConfig(
            inner_size=4 * hidden_size, activation=Activation.GELU_TANH, gated=False, bias=True
        ),
        norm=norm,
        norm_order=NormOrder.PRE,
    )
    model = ModelConfig(
        kind=Kind.DECODER,
        vocabulary_size=config.positive("vocab_size"),
        hidden_size=hidden_size,
        position=PositionConfig(
            kind=PositionKind.NONE,
            max_positions=config.positive("seq_length", TRAINED_POSITIONS),
        ),
        embedding=EmbeddingConfig(norm=norm),
        decoder=StackConfig(layers=(layer,) * num_layers, final_norm=norm),
        head=HeadConfig(
            kind=HeadKind.LANGUAGE_MODEL, tied=config.flag("tie_word_embeddings", True)
        ),
    )
    table = [
        Rename("embedding.tokens.weight", (TOKENS,)),
        *affine("embedding.norm", "word_embeddings_layernorm"),
        *per_layer(_layer_table(select_rows(rows_by_kind(num_heads, head_size))), num_layers),
        *affine("decoder.final_norm", "ln_f"),
    ]
    # The first checkpoints were saved without a head.
    table = prefixed(table, "" if TOKENS in folder.weights else "transformer.")
    if not model.head.tied:
        table += linear("head.output", OUTPUT_MATRIX.removesuffix(".weight"), bias=False)
    return causal_checkpoint(folder, model, architecture, table)


def _layer_table(rows: Transform) -> list[Rename]:
    attention, feed_forward = f"{_SOURCE}.self_attention", f"{_SOURCE}.mlp"
    return [
        *affine(f"{_TARGET}.mixer_norm", f"{_SOURCE}.input_layernorm"),
        *linear(f"{_TARGET}.mixer.qkv", f"{attention}.query_key_value", bias=True, rows=rows),
        *linear(f"{_TARGET}.mixer.output", f"{attention}.dense", bias=True),
        *affine(f"{_TARGET}.feed_forward_norm", f"{_SOURCE}.post_attention_layernorm"),
        *linear(f"{_TARGET}.feed_forward.input", f"{feed_forward}.dense_h_to_4h", bias=True),
        *linear(f"{_TARGET}.feed_forward.output", f"{feed_forward}.dense_4h_to_h", bias=True),
    ]
