"""GPT-2 (Radford et al. 2019), as ``transformers`` saves it.

Its linear weights are ``[inputs, outputs]``, as in this project; queries, keys and values are
packed.
"""

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.causal import OUTPUT_MATRIX, architecture_of, causal_checkpoint
from export.importers.renaming import Rename, affine, linear, numbered, per_layer, prefixed
from export.importers.support import MAX_LAYERS, divide_heads
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import (
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
from model.position_config import PositionConfig, PositionKind

_TARGET, _SOURCE = "decoder.layers.{n}", "h.{n}"
_CROSS = f"{_TARGET}.cross_attention"
TRUNK = (
    Rename("embedding.tokens.weight", ("wte.weight",)),
    Rename("embedding.positions.weight", ("wpe.weight",)),
    *affine("decoder.final_norm", "ln_f"),
)
LAYER = (
    *affine(f"{_TARGET}.mixer_norm", f"{_SOURCE}.ln_1"),
    *affine(f"{_TARGET}.mixer.qkv", f"{_SOURCE}.attn.c_attn"),
    *affine(f"{_TARGET}.mixer.output", f"{_SOURCE}.attn.c_proj"),
    *affine(f"{_TARGET}.feed_forward_norm", f"{_SOURCE}.ln_2"),
    *affine(f"{_TARGET}.feed_forward.input", f"{_SOURCE}.mlp.c_fc"),
    *affine(f"{_TARGET}.feed_forward.output", f"{_SOURCE}.mlp.c_proj"),
)
# What a layer has besides if it attends to an encoder's vectors.
CROSS_LAYER = (
    *affine(f"{_CROSS}_norm", f"{_SOURCE}.ln_cross_attn"),
    *affine(f"{_CROSS}.query", f"{_SOURCE}.crossattention.q_attn"),
    *affine(f"{_CROSS}.key_value", f"{_SOURCE}.crossattention.c_attn"),
    *affine(f"{_CROSS}.output", f"{_SOURCE}.crossattention.c_proj"),
)
# GPT-2's names for fields that most families name differently.
FIELDS = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
MASKS = ("h.{n}.attn.bias", "h.{n}.attn.masked_bias")  # buffers of old versions


def import_gpt2(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``GPT2LMHeadModel`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    check_supported(config, add_cross_attention=(False,))
    architecture = architecture_of(config, "GPT2LMHeadModel")
    hidden_size = config.positive("n_embd", 768)
    layers = gpt2_layers(config, hidden_size)
    model = ModelConfig(
        kind=Kind.DECODER,
        vocabulary_size=config.positive("vocab_size", 50257),
        hidden_size=hidden_size,
        position=PositionConfig(
            kind=PositionKind.LEARNED, max_positions=config.positive("n_positions", 1024)
        ),
        embedding=EmbeddingConfig(),
        decoder=StackConfig(layers=layers, final_norm=gpt2_norm(config)),
        head=HeadConfig(
            kind=HeadKind.LANGUAGE_MODEL, tied=config.flag("tie_word_embeddings", True)
        ),
    )
    # The first checkpoints were saved without a head.
    prefix = "transformer." if "transformer.wte.weight" in folder.weights else ""
    table = prefixed([*TRUNK, *per_layer(LAYER, len(layers))], prefix)
    if not model.head.tied:
        table += linear("head.output", OUTPUT_MATRIX.removesuffix(".weight"), bias=False)
    ignored = [prefix + mask for mask in numbered(MASKS, len(layers))]
    return causal_checkpoint(folder, model, architecture, table, ignored=ignored)


def gpt2_layers(config: Fields, hidden_size: int) -> tuple[LayerConfig, ...]:
    """The layers that ``config`` describes, without cross-attention."""
    num_heads = config.positive("n_head", 12)
    head_size = divide_heads(config.origin, hidden_size, num_heads)
    scale = head_size**-0.5 if config.flag("scale_attn_weights", True) else 1.0
    by_depth = config.flag("scale_attn_by_inverse_layer_idx", False)  # Mistral's GPT-2
    return tuple(
        LayerConfig(
            attention=AttentionConfig(
                num_heads=num_heads,
                num_kv_heads=num_heads,
                head_size=head_size,
                input_bias=True,
                output_bias=True,
                scale=scale / (index + 1) if by_depth else scale,
            ),
            feed_forward=FeedForwardConfig(
                inner_size=config.positive("n_inner", 4 * hidden_size),
                activation=activation(config, "activation_function", "gelu_new"),
                gated=False,
                bias=True,
            ),
            norm=gpt2_norm(config),
            norm_order=NormOrder.PRE,
        )
        for index in range(config.positive("n_layer", 12, maximum=MAX_LAYERS))
    )


def gpt2_norm(config: Fields) -> NormConfig:
    """The norm of every layer, and after them."""
    return NormConfig(kind=NormKind.LAYER, epsilon=config.number("layer_norm_epsilon", 1e-5))
