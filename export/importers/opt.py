"""OPT (Zhang et al. 2022), as ``transformers`` saves it.

The first two rows of its positions are for padding. The model with 350 million parameters is
post-norm and has smaller embeddings, with a projection from them and one back. Positions are added
after the first projection, which is therefore multiplied into the token embedding.
"""

from torch import Tensor

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.causal import OUTPUT_MATRIX, architecture_of, causal_checkpoint
from export.importers.renaming import Rename, affine, linear, per_layer, prefixed
from export.importers.support import MAX_LAYERS, divide_heads
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import (
    AttentionConfig,
    DenseConfig,
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

NUM_PADDING_ROWS = 2
TOKENS = "embed_tokens.weight"
_TARGET, _SOURCE = "decoder.layers.{n}", "layers.{n}"


def without_padding_rows(positions: Tensor) -> Tensor:
    """The positions without the rows for padding."""
    return positions[NUM_PADDING_ROWS:]


def projected(tokens: Tensor, projection: Tensor) -> Tensor:
    """``tokens [vocabulary, inner]`` and ``projection [outer, inner]``: ``[vocabulary, outer]``."""
    return tokens @ projection.T


def import_opt(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``OPTForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "OPTForCausalLM")
    check_supported(config, layer_norm_elementwise_affine=(True,))
    hidden_size = config.positive("hidden_size", 768)
    embedding_size = config.positive("word_embed_proj_dim", hidden_size)
    has_projections = embedding_size != hidden_size
    layer = _layer(config, hidden_size)
    num_layers = config.positive("num_hidden_layers", 12, maximum=MAX_LAYERS)
    ends_with_norm = layer.norm_order == NormOrder.PRE and not config.flag(
        "_remove_final_layer_norm", False
    )
    tied = config.flag("tie_word_embeddings", True)
    model = ModelConfig(
        kind=Kind.DECODER,
        vocabulary_size=config.positive("vocab_size", 50272),
        hidden_size=hidden_size,
        position=PositionConfig(
            kind=PositionKind.LEARNED,
            max_positions=config.positive("max_position_embeddings", 2048),
        ),
        embedding=EmbeddingConfig(),
        decoder=StackConfig(
            layers=(layer,) * num_layers, final_norm=layer.norm if ends_with_norm else None
        ),
        head=HeadConfig(
            kind=HeadKind.LANGUAGE_MODEL,
            tied=tied and not has_projections,
            dense=(DenseConfig(size=embedding_size, bias=False),) if has_projections else (),
        ),
    )
    bias = config.flag("enable_bias", True)
    table = [
        *_embedding_table(has_projections),
        *per_layer(_layer_table(bias), num_layers),
        *(affine("decoder.final_norm", "final_layer_norm") if ends_with_norm else ()),
    ]
    if has_projections and tied:
        table += linear("head.output", TOKENS.removesuffix(".weight"), bias=False)
    prefix = "decoder." if f"decoder.{TOKENS}" in folder.weights else "model.decoder."
    table = prefixed(table, prefix)
    if not tied:
        table += linear("head.output", OUTPUT_MATRIX.removesuffix(".weight"), bias=False)
    ignored = [OUTPUT_MATRIX] if tied else []
    return causal_checkpoint(folder, model, architecture, table, ignored=ignored)


def _embedding_table(has_projections: bool) -> list[Rename]:
    positions = Rename(
        "embedding.positions.weight", ("embed_positions.weight",), without_padding_rows
    )
    if not has_projections:
        return [Rename("embedding.tokens.weight", (TOKENS,)), positions]
    return [
        Rename("embedding.tokens.weight", (TOKENS, "project_in.weight"), projected),
        positions,
        *linear("head.dense.0.linear", "project_out", bias=False),
    ]


def _layer_table(bias: bool) -> list[Rename]:
    attention = f"{_SOURCE}.self_attn"
    qkv = [f"{attention}.{name}_proj" for name in "qkv"]
    return [
        *affine(f"{_TARGET}.mixer_norm", f"{_SOURCE}.self_attn_layer_norm"),
        *linear(f"{_TARGET}.mixer.qkv", *qkv, bias=bias),
        *linear(f"{_TARGET}.mixer.output", f"{attention}.out_proj", bias=bias),
        *affine(f"{_TARGET}.feed_forward_norm", f"{_SOURCE}.final_layer_norm"),
        *linear(f"{_TARGET}.feed_forward.input", f"{_SOURCE}.fc1", bias=bias),
        *linear(f"{_TARGET}.feed_forward.output", f"{_SOURCE}.fc2", bias=bias),
    ]


def _layer(config: Fields, hidden_size: int) -> LayerConfig:
    num_heads = config.positive("num_attention_heads", 12)
    bias = config.flag("enable_bias", True)
    before = config.flag("do_layer_norm_before", True)
    return LayerConfig(
        attention=AttentionConfig(
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_size=divide_heads(config.origin, hidden_size, num_heads),
            input_bias=bias,
            output_bias=bias,
        ),
        feed_forward=FeedForwardConfig(
            inner_size=config.positive("ffn_dim", 3072),
            activation=activation(config, "activation_function", "relu"),
            gated=False,
            bias=bias,
        ),
        norm=NormConfig(kind=NormKind.LAYER, epsilon=1e-5),
        norm_order=NormOrder.PRE if before else NormOrder.POST,
    )
