"""BERT's layers as a decoder that attends to an encoder's vectors."""

from dataclasses import replace

from export.importers.activations import activation
from export.importers.bert_tables import (
    EMBEDDING_NORM,
    POSITIONS,
    SEGMENTS,
    TOKENS,
    UNUSED,
    LayerNames,
    layer_norm,
    multi_head,
    num_layers,
    two_maps,
)
from export.importers.renaming import Rename, affine, linear, per_layer, prefixed
from export.importers.text_decoders import TextDecoder, with_cross_attention
from export.readers.fields import Fields
from export.supported import check_supported
from model.config import (
    DenseConfig,
    EmbeddingConfig,
    HeadConfig,
    HeadKind,
    LayerConfig,
    NormOrder,
    StackConfig,
)
from model.position_config import PositionConfig, PositionKind

HEAD = "cls.predictions"
_CROSS, _SOURCE = "decoder.layers.{n}.cross_attention", "encoder.layer.{n}.crossattention"
CROSS_LAYER = (
    *linear(f"{_CROSS}.query", f"{_SOURCE}.self.query", bias=True),
    *linear(f"{_CROSS}.key_value", f"{_SOURCE}.self.key", f"{_SOURCE}.self.value", bias=True),
    *linear(f"{_CROSS}.output", f"{_SOURCE}.output.dense", bias=True),
    *affine(f"{_CROSS}_norm", f"{_SOURCE}.output.LayerNorm"),
)
# Every token is of the first type.
TYPED_POSITIONS = Rename(
    POSITIONS.target,
    (*POSITIONS.sources, *SEGMENTS.sources),
    lambda positions, types: positions + types[:1],
)


def bert_decoder(config: Fields, source_size: int) -> TextDecoder:
    """The ``BertLMHeadModel`` that ``config`` describes, with cross-attention.

    The arguments and errors are those of :func:`export.importers.text_decoders.gpt2_decoder`.
    """
    check_supported(
        config,
        add_cross_attention=(True,),
        cross_attention_hidden_size=(None,),
        position_embedding_type=("absolute",),
    )
    return decoder_like_bert(config, source_size, TYPED_POSITIONS)


def decoder_like_bert(config: Fields, source_size: int, positions: Rename) -> TextDecoder:
    """BERT's layers with cross-attention, and the head of its masked language model.

    ``positions``: makes the table of positions.
    """
    check_supported(config, is_decoder=(True,), tie_word_embeddings=(True,))
    hidden_size, number = config.positive("hidden_size", 768), num_layers(config)
    kind = activation(config, "hidden_act", "gelu")
    attention, norm = multi_head(config), layer_norm(config)
    layer = LayerConfig(
        attention=attention,
        feed_forward=two_maps(config, kind),
        norm=norm,
        norm_order=NormOrder.POST,
    )
    layer = with_cross_attention(layer, attention, source_size, hidden_size)
    own = (
        replace(entry, target=entry.target.replace("encoder.", "decoder.", 1))
        for entry in LayerNames().table()
    )
    table = [TOKENS, positions, *EMBEDDING_NORM, *per_layer([*own, *CROSS_LAYER], number)]
    dense = DenseConfig(size=hidden_size, activation=kind, norm=norm)
    return TextDecoder(
        vocabulary_size=config.positive("vocab_size"),
        hidden_size=hidden_size,
        position=PositionConfig(
            kind=PositionKind.LEARNED,
            max_positions=config.positive("max_position_embeddings", 512),
        ),
        embedding=EmbeddingConfig(norm=norm),
        stack=StackConfig(layers=(layer,) * number),
        head=HeadConfig(kind=HeadKind.LANGUAGE_MODEL, bias=True, tied=True, dense=(dense,)),
        table=(
            *prefixed(table, "bert."),
            *linear("head.dense.0.linear", f"{HEAD}.transform.dense", bias=True),
            *affine("head.dense.0.norm", f"{HEAD}.transform.LayerNorm"),
            Rename("head.output.bias", (f"{HEAD}.bias",)),
        ),
        ignored=tuple(f"bert.{name}" for name in UNUSED),
        copies={
            f"{HEAD}.decoder.weight": "embedding.tokens.weight",
            f"{HEAD}.decoder.bias": "head.output.bias",
        },
    )
