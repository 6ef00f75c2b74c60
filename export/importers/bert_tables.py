"""Shared by the importers of BERT and its successors: weight names and configuration fields."""

from dataclasses import dataclass

import msgspec
from torch import Tensor

from export.errors import SourceError
from export.importers.activations import activation
from export.importers.encoders import Body
from export.importers.renaming import Rename, affine, linear, per_layer
from export.importers.support import MAX_LAYERS, divide_heads
from export.readers.fields import Fields
from export.supported import check_supported
from model.config import (
    Activation,
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerConfig,
    NormConfig,
    NormKind,
    NormOrder,
    StackConfig,
)
from model.position_config import PositionConfig, PositionKind


@dataclass(frozen=True, kw_only=True)
class LayerNames:
    """A family's names for the parts of layer ``{n}``."""

    query: str = "encoder.layer.{n}.attention.self.query"
    key: str = "encoder.layer.{n}.attention.self.key"
    value: str = "encoder.layer.{n}.attention.self.value"
    attention_output: str = "encoder.layer.{n}.attention.output.dense"
    attention_norm: str = "encoder.layer.{n}.attention.output.LayerNorm"
    feed_forward_input: str = "encoder.layer.{n}.intermediate.dense"
    feed_forward_output: str = "encoder.layer.{n}.output.dense"
    feed_forward_norm: str = "encoder.layer.{n}.output.LayerNorm"

    def table(self, *, input_bias: bool = True) -> tuple[Rename, ...]:
        """The weights of a layer, for :func:`export.importers.renaming.per_layer`.

        Args:
            input_bias: whether queries, keys and values have biases.
        """
        target = "encoder.layers.{n}"
        return (
            *linear(f"{target}.mixer.qkv", self.query, self.key, self.value, bias=input_bias),
            *linear(f"{target}.mixer.output", self.attention_output, bias=True),
            *affine(f"{target}.mixer_norm", self.attention_norm),
            *linear(f"{target}.feed_forward.input", self.feed_forward_input, bias=True),
            *linear(f"{target}.feed_forward.output", self.feed_forward_output, bias=True),
            *affine(f"{target}.feed_forward_norm", self.feed_forward_norm),
        )


TOKENS = Rename("embedding.tokens.weight", ("embeddings.word_embeddings.weight",))
POSITIONS = Rename("embedding.positions.weight", ("embeddings.position_embeddings.weight",))
SEGMENTS = Rename("embedding.segments.weight", ("embeddings.token_type_embeddings.weight",))
EMBEDDING_NORM = affine("embedding.norm", "embeddings.LayerNorm")

# Buffers of old transformers versions, and the pooler, which is ignored if no head uses it.
UNUSED = (
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    "pooler.dense.weight",
    "pooler.dense.bias",
)


def later_positions(first: int) -> Rename:
    """Positions where the first token has row ``first``: fairseq starts after the padding's id."""
    return Rename(POSITIONS.target, POSITIONS.sources, lambda rows: rows[first:])


def embeddings(
    config: Fields,
    *,
    first_position: int = 0,
    max_positions: int | None = None,
    added: tuple[str, ...] = (),
) -> tuple[Rename, ...]:
    """Tokens, positions and token types, without the norm.

    Args:
        first_position: the row of the first token's position.
        max_positions: the number of positions; default: all.
        added: tables whose first row is added to every token, as with a single token type; they are
            folded into the positions.
    """
    segments: tuple[Rename, ...] = (SEGMENTS,)
    if not num_segments(config):
        segments, added = (), (*added, *SEGMENTS.sources)

    def fold(positions: Tensor, *tables: Tensor) -> Tensor:
        rows = positions[first_position:][:max_positions]
        return sum((table[:1] for table in tables), rows)

    return (TOKENS, Rename(POSITIONS.target, (*POSITIONS.sources, *added), fold), *segments)


def num_segments(config: Fields) -> int:
    """The number of token types; 0 if there is only one."""
    number = config.positive("type_vocab_size", 2)
    return 0 if number == 1 else number


def layer_norm(config: Fields, name: str = "layer_norm_eps", default: float = 1e-12) -> NormConfig:
    """The layer norm of a family whose epsilon is in the field ``name``."""
    return NormConfig(kind=NormKind.LAYER, epsilon=config.number(name, default))


def learned_positions(config: Fields, *, first: int = 0) -> PositionConfig:
    """Learned positions where the first token has row ``first``.

    Raises:
        SourceError: the table has no further rows.
    """
    num_rows = config.positive("max_position_embeddings", 512)
    if num_rows <= first:
        raise SourceError(
            f"{config.origin}: max_position_embeddings is {num_rows}, not over {first}"
        )
    return PositionConfig(kind=PositionKind.LEARNED, max_positions=num_rows - first)


@dataclass(frozen=True, kw_only=True)
class BertVariant:
    """The differences between BERT and its successors that have the same parts.

    Attributes:
        base: the prefix of the body's weights in classes with a head.
        embedding_norm: whether the sum of the embeddings is normalised.
        final_norm: the name of the norm after the last layer, if there is one.
    """

    base: str
    names: LayerNames = LayerNames()
    norm_order: NormOrder = NormOrder.POST
    embedding_norm: bool = True
    final_norm: str | None = None


def bert_body(
    config: Fields,
    variant: BertVariant,
    *,
    first_position: int = 0,
    max_positions: int | None = None,
    added: tuple[str, ...] = (),
    input_bias: bool = True,
) -> Body:
    """The body of a model of ``variant``.

    Args:
        first_position: as in :func:`embeddings`; ``max_positions`` and ``added`` likewise.
        input_bias: whether queries, keys and values have biases.

    Raises:
        SourceError, UnsupportedError: see :mod:`export.errors`.
    """
    layer = msgspec.structs.replace(
        post_norm_layer(config),
        attention=multi_head(config, input_bias=input_bias),
        norm_order=variant.norm_order,
    )
    position = learned_positions(config, first=first_position)
    if max_positions is not None:
        limit = min(max_positions, position.max_positions)
        position = msgspec.structs.replace(position, max_positions=limit)
    number, embedding = num_layers(config), normed_embedding(config)
    norms: list[Rename] = []
    if variant.embedding_norm:
        norms += EMBEDDING_NORM
    else:
        embedding = msgspec.structs.replace(embedding, norm=None)
    if variant.final_norm is not None:
        norms += affine("encoder.final_norm", variant.final_norm)
    return Body(
        base=variant.base,
        hidden_size=config.positive("hidden_size"),
        position=position,
        embedding=embedding,
        encoder=StackConfig(
            layers=(layer,) * number,
            final_norm=None if variant.final_norm is None else layer.norm,
        ),
        table=(
            *embeddings(
                config,
                first_position=first_position,
                max_positions=position.max_positions,
                added=added,
            ),
            *norms,
            *per_layer(variant.names.table(input_bias=input_bias), number),
        ),
        ignored=UNUSED,
    )


def normed_embedding(config: Fields) -> EmbeddingConfig:
    """The configuration for :func:`embeddings`, whose size may differ from the hidden size."""
    size = config.optional_integer("embedding_size")
    return EmbeddingConfig(
        norm=layer_norm(config),
        num_segments=num_segments(config),
        size=None if size == config.positive("hidden_size") else size,
    )


def num_layers(config: Fields) -> int:
    """``num_hidden_layers`` of the configuration."""
    return config.positive("num_hidden_layers", maximum=MAX_LAYERS)


def post_norm_layer(config: Fields) -> LayerConfig:
    """A layer of BERT.

    Raises:
        UnsupportedError: it is a decoder's layer, or its attention has relative positions.
    """
    check_supported(
        config,
        position_embedding_type=("absolute",),
        is_decoder=(False,),
        add_cross_attention=(False,),
    )
    return LayerConfig(
        attention=multi_head(config),
        feed_forward=two_maps(config, activation(config, "hidden_act", "gelu")),
        norm=layer_norm(config),
        norm_order=NormOrder.POST,
    )


def multi_head(
    config: Fields, *, input_bias: bool = True, size_field: str = "hidden_size"
) -> AttentionConfig:
    """Multi-head attention of the size in ``size_field``.

    Raises:
        SourceError: the heads do not divide the size.
    """
    size = config.positive(size_field)
    num_heads = config.positive("num_attention_heads")
    return AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=divide_heads(config.origin, size, num_heads),
        input_bias=input_bias,
        output_bias=True,
    )


def two_maps(config: Fields, kind: Activation) -> FeedForwardConfig:
    """The feed-forward of a layer with ``intermediate_size``."""
    return FeedForwardConfig(
        inner_size=config.positive("intermediate_size"), activation=kind, gated=False, bias=True
    )
