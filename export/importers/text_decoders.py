"""Decoders that attend to an encoder's vectors, as parts of ``transformers`` folders."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import structs

from export.importers.activations import activation
from export.importers.bart_layers import BART_NAMES, layer_table
from export.importers.bart_tables import NORM
from export.importers.causal import OUTPUT_MATRIX
from export.importers.gpt2 import CROSS_LAYER, LAYER, TRUNK, gpt2_layers, gpt2_norm
from export.importers.renaming import Rename, affine, linear, numbered, per_layer, prefixed
from export.importers.support import MAX_LAYERS, MAX_TABLE_POSITIONS, divide_heads
from export.readers.fields import Fields
from export.supported import check_supported
from model.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    HeadKind,
    LayerConfig,
    NormOrder,
    StackConfig,
)
from model.position_config import PositionConfig, PositionKind

GPT2_BUFFERS = tuple(  # of old versions
    f"transformer.h.{{n}}.{attention}.{name}"
    for attention in ("attn", "crossattention")
    for name in ("bias", "masked_bias")
)
TROCR_OUTPUT = "output_projection"
NUM_UNUSED_POSITIONS = 2  # fairseq reserves the first rows of a table for padding


@dataclass(frozen=True, kw_only=True)
class TextDecoder:
    """A decoder with cross-attention.

    ``table``, ``ignored`` and ``copies``: as in :func:`export.importers.renaming.rename`, with the
    names of a folder of the decoder alone.
    """

    vocabulary_size: int
    hidden_size: int
    position: PositionConfig
    embedding: EmbeddingConfig
    stack: StackConfig
    head: HeadConfig
    table: tuple[Rename, ...]
    ignored: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)


def gpt2_decoder(config: Fields, source_size: int) -> TextDecoder:
    """The ``GPT2LMHeadModel`` that ``config`` describes, with cross-attention.

    Args:
        source_size: of the encoder's vectors.

    Raises:
        SourceError, UnsupportedError: see :mod:`export.errors`.
    """
    # Its class has no matrices for vectors of another size than its own.
    check_supported(config, add_cross_attention=(True,), cross_attention_hidden_size=(None,))
    hidden_size = config.positive("n_embd", 768)
    layers = tuple(
        with_cross_attention(layer, layer.attention, source_size, hidden_size)
        for layer in gpt2_layers(config, hidden_size)
    )
    head = _head(config)
    table = prefixed([*TRUNK, *per_layer([*LAYER, *CROSS_LAYER], len(layers))], "transformer.")
    return TextDecoder(
        vocabulary_size=config.positive("vocab_size", 50257),
        hidden_size=hidden_size,
        position=PositionConfig(
            kind=PositionKind.LEARNED, max_positions=config.positive("n_positions", 1024)
        ),
        embedding=EmbeddingConfig(),
        stack=StackConfig(layers=layers, final_norm=gpt2_norm(config)),
        head=head,
        table=(*table, *_output(head, OUTPUT_MATRIX.removesuffix(".weight"))),
        ignored=tuple(numbered(GPT2_BUFFERS, len(layers))),
        copies={OUTPUT_MATRIX: "embedding.tokens.weight"} if head.tied else {},
    )


def trocr_decoder(config: Fields, source_size: int) -> TextDecoder:
    """The ``TrOCRForCausalLM`` that ``config`` describes: BART's decoder.

    The arguments and errors are those of :func:`gpt2_decoder`.
    """
    hidden_size = config.positive("d_model", 1024)
    is_learned = config.flag("use_learned_position_embeddings", True)
    embedding_norm = NORM if config.flag("layernorm_embedding", True) else None
    layers = _trocr_layers(config, hidden_size, source_size)
    head, start = _head(config), "model.decoder"
    table = [
        Rename("embedding.tokens.weight", (f"{start}.embed_tokens.weight",)),
        *(
            entry.at(index)
            for index, layer in enumerate(layers)
            for entry in layer_table("decoder", layer, BART_NAMES)
        ),
        *_output(head, TROCR_OUTPUT),
    ]
    if is_learned:
        source = f"{start}.embed_positions.weight"
        table.append(
            Rename(
                "embedding.positions.weight", (source,), lambda rows: rows[NUM_UNUSED_POSITIONS:]
            )
        )
    if embedding_norm is not None:
        table += affine("embedding.norm", f"{start}.layernorm_embedding")
    return TextDecoder(
        vocabulary_size=config.positive("vocab_size", 50265),
        hidden_size=hidden_size,
        position=PositionConfig(
            kind=PositionKind.LEARNED if is_learned else PositionKind.SINUSOIDAL,
            max_positions=config.positive(
                "max_position_embeddings", 512, maximum=MAX_TABLE_POSITIONS
            ),
            first=0 if is_learned else config.integer("pad_token_id", 1) + 1,
        ),
        embedding=EmbeddingConfig(
            scale=hidden_size**0.5 if config.flag("scale_embedding", False) else 1.0,
            norm=embedding_norm,
        ),
        stack=StackConfig(layers=layers),
        head=head,
        table=tuple(table),
        ignored=(f"{start}.embed_positions._float_tensor", f"{start}.version"),
        copies={f"{TROCR_OUTPUT}.weight": "embedding.tokens.weight"} if head.tied else {},
    )


def _trocr_layers(config: Fields, hidden_size: int, source_size: int) -> tuple[LayerConfig, ...]:
    num_heads = config.positive("decoder_attention_heads", 16)
    attention = AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_size=divide_heads(config.origin, hidden_size, num_heads),
        input_bias=True,
        output_bias=True,
    )
    layer = LayerConfig(
        attention=attention,
        feed_forward=FeedForwardConfig(
            inner_size=config.positive("decoder_ffn_dim", 4096),
            activation=activation(config, "activation_function", "gelu"),
            gated=False,
            bias=True,
        ),
        norm=NORM,
        norm_order=NormOrder.POST,
    )
    layer = with_cross_attention(layer, attention, source_size, hidden_size)
    return (layer,) * config.positive("decoder_layers", 12, maximum=MAX_LAYERS)


def with_cross_attention(
    layer: LayerConfig, attention: AttentionConfig | None, source_size: int, hidden_size: int
) -> LayerConfig:
    """``layer`` with ``attention`` to vectors of ``source_size`` numbers too."""
    if attention is not None and source_size != hidden_size:
        attention = structs.replace(attention, source_size=source_size)
    return structs.replace(layer, cross_attention=attention)


def _head(config: Fields) -> HeadConfig:
    is_tied = config.flag("tie_word_embeddings", True)
    return HeadConfig(kind=HeadKind.LANGUAGE_MODEL, tied=is_tied)


def _output(head: HeadConfig, source: str) -> list[Rename]:
    """The output matrix, if it is not the token table."""
    return [] if head.tied else linear("head.output", source, bias=False)
