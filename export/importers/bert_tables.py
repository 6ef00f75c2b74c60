"""What BERT and the encoders after it share: tables of names, and fields of the configuration."""

from dataclasses import dataclass

from torch import Tensor

from export.errors import SourceError
from export.importers.activations import activation
from export.importers.renaming import Rename, affine, linear
from export.importers.support import MAX_LAYERS, divide_heads
from export.readers.fields import Fields
from export.supported import check_supported
from model.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerConfig,
    NormConfig,
    NormKind,
    NormOrder,
)
from model.position_config import PositionConfig, PositionKind


@dataclass(frozen=True, kw_only=True)
class LayerNames:
    """What a family calls the parts of its layer ``{n}``."""

    query: str = "encoder.layer.{n}.attention.self.query"
    key: str = "encoder.layer.{n}.attention.self.key"
    value: str = "encoder.layer.{n}.attention.self.value"
    attention_output: str = "encoder.layer.{n}.attention.output.dense"
    attention_norm: str = "encoder.layer.{n}.attention.output.LayerNorm"
    feed_forward_input: str = "encoder.layer.{n}.intermediate.dense"
    feed_forward_output: str = "encoder.layer.{n}.output.dense"
    feed_forward_norm: str = "encoder.layer.{n}.output.LayerNorm"

    def table(self) -> tuple[Rename, ...]:
        """The weights of a layer, for :func:`export.importers.renaming.per_layer`."""
        ours = "encoder.layers.{n}"
        return (
            *linear(f"{ours}.mixer.qkv", self.query, self.key, self.value, bias=True),
            *linear(f"{ours}.mixer.output", self.attention_output, bias=True),
            *affine(f"{ours}.mixer_norm", self.attention_norm),
            *linear(f"{ours}.feed_forward.input", self.feed_forward_input, bias=True),
            *linear(f"{ours}.feed_forward.output", self.feed_forward_output, bias=True),
            *affine(f"{ours}.feed_forward_norm", self.feed_forward_norm),
        )


TOKENS = Rename("embedding.tokens.weight", ("embeddings.word_embeddings.weight",))
POSITIONS = Rename("embedding.positions.weight", ("embeddings.position_embeddings.weight",))
SEGMENTS = Rename("embedding.segments.weight", ("embeddings.token_type_embeddings.weight",))
EMBEDDING_NORM = affine("embedding.norm", "embeddings.LayerNorm")

# Buffers of old transformers versions, and a pooler where no head uses it.
UNUSED = (
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    "pooler.dense.weight",
    "pooler.dense.bias",
)


def later_positions(first: int) -> Rename:
    """Positions of a text that begins with row ``first``.

    fairseq's models number them from the padding's id on.
    """
    return Rename(POSITIONS.target, POSITIONS.sources, lambda rows: rows[first:])


def embeddings(config: Fields, *, first_position: int = 0) -> tuple[Rename, ...]:
    """Tokens, positions and token types; a lone token type is added to each position."""

    def fold(positions: Tensor, segments: Tensor) -> Tensor:
        return positions[first_position:] + segments[:1]

    if num_segments(config):
        return (TOKENS, later_positions(first_position), SEGMENTS, *EMBEDDING_NORM)
    folded = Rename(POSITIONS.target, POSITIONS.sources + SEGMENTS.sources, fold)
    return (TOKENS, folded, *EMBEDDING_NORM)


def num_segments(config: Fields) -> int:
    """Token types that a text can choose from: 0 where there is one only."""
    number = config.positive("type_vocab_size", 2)
    return 0 if number == 1 else number


def layer_norm(config: Fields, name: str = "layer_norm_eps", default: float = 1e-12) -> NormConfig:
    """The layer norm of a family that writes its epsilon as ``name``."""
    return NormConfig(kind=NormKind.LAYER, epsilon=config.number(name, default))


def learned_positions(config: Fields, *, first: int = 0) -> PositionConfig:
    """Learned positions, of which a text begins with row ``first``.

    Raises:
        SourceError: there are no more than that.
    """
    held = config.positive("max_position_embeddings", 512)
    if held <= first:
        raise SourceError(f"{config.origin}: max_position_embeddings is {held}, not over {first}")
    return PositionConfig(kind=PositionKind.LEARNED, max_positions=held - first)


def normed_embedding(config: Fields) -> EmbeddingConfig:
    """As :func:`embeddings` are, of a size of their own if the configuration says so."""
    size = config.optional_integer("embedding_size")
    return EmbeddingConfig(
        norm=layer_norm(config),
        num_segments=num_segments(config),
        size=None if size == config.positive("hidden_size") else size,
    )


def num_layers(config: Fields) -> int:
    """As the configuration says."""
    return config.positive("num_hidden_layers", maximum=MAX_LAYERS)


def post_norm_layer(config: Fields) -> LayerConfig:
    """A layer of BERT.

    Raises:
        UnsupportedError: it is a decoder's, or its attention knows positions of its own.
    """
    check_supported(
        config,
        position_embedding_type=("absolute",),
        is_decoder=(False,),
        add_cross_attention=(False,),
    )
    hidden_size = config.positive("hidden_size")
    num_heads = config.positive("num_attention_heads")
    return LayerConfig(
        attention=AttentionConfig(
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_size=divide_heads(config.origin, hidden_size, num_heads),
            input_bias=True,
            output_bias=True,
        ),
        feed_forward=FeedForwardConfig(
            inner_size=config.positive("intermediate_size"),
            activation=activation(config, "hidden_act", "gelu"),
            gated=False,
            bias=True,
        ),
        norm=layer_norm(config),
        norm_order=NormOrder.POST,
    )
