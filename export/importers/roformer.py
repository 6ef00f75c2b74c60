"""RoFormer (Su et al. 2021), as ``transformers`` saves it: BERT with rotary positions.

Its rotary pairs are adjacent; in this project, they are half a head apart. The importer reorders
the outputs of queries and keys, which does not change their dot products.
"""

import msgspec
from torch import Tensor

from export.checkpoint import Checkpoint
from export.importers.bert_tables import (
    EMBEDDING_NORM,
    SEGMENTS,
    TOKENS,
    UNUSED,
    LayerNames,
    normed_embedding,
    num_layers,
    post_norm_layer,
)
from export.importers.encoders import Body, assemble
from export.importers.head_tables import bert_masked, classifier, five_classes, hidden_act
from export.importers.renaming import Rename, Transform, linear, per_layer
from export.importers.support import MAX_TABLE_POSITIONS, check_table_size
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import LayerConfig, StackConfig
from model.mixers import required
from model.position_config import PositionConfig, PositionKind, RotaryConfig
from model.positions import paper_sinusoids

PROJECTION = linear("embedding.projection", "embeddings_project", bias=True)
SINUSOIDS = "encoder.embed_positions.weight"


def import_roformer(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    check_supported(config, rotary_value=(False,))
    embedding = msgspec.structs.replace(
        normed_embedding(config), num_segments=config.positive("type_vocab_size", 2)
    )
    layers = (_layer(config),) * num_layers(config)
    num_heads = required(layers[0].attention).num_heads
    max_positions = config.positive("max_position_embeddings", 1536, maximum=MAX_TABLE_POSITIONS)
    head_size = required(layers[0].attention).head_size
    check_table_size(max_positions, head_size)
    body = Body(
        base="roformer",
        hidden_size=config.positive("hidden_size"),
        position=PositionConfig(kind=PositionKind.NONE, max_positions=max_positions),
        embedding=embedding,
        encoder=StackConfig(layers=layers),
        table=(
            *(TOKENS, SEGMENTS, *EMBEDDING_NORM),
            *(() if embedding.size is None else PROJECTION),
            *per_layer(_in_halves(num_heads), len(layers)),
        ),
        ignored=UNUSED,
        computed={SINUSOIDS: paper_sinusoids(max_positions, head_size)},
    )
    return assemble(folder, body, HEADS, "RoFormerModel")


def _layer(config: Fields) -> LayerConfig:
    layer = post_norm_layer(config)
    attention = msgspec.structs.replace(required(layer.attention), rotary=RotaryConfig())
    return msgspec.structs.replace(layer, attention=attention)


def _in_halves(num_heads: int) -> list[Rename]:
    """A layer's weights in the half-split layout of rotary pairs."""

    def halves(weight: Tensor) -> Tensor:
        pairs = weight.reshape(num_heads, -1, 2, *weight.shape[1:])
        return pairs.transpose(1, 2).reshape(weight.shape)

    def packed(transform: Transform) -> Transform:
        return lambda query, key, value: transform(halves(query), halves(key), value)

    return [
        Rename(entry.target, entry.sources, packed(entry.transform))
        if ".mixer.qkv." in entry.target
        else entry
        for entry in LayerNames().table()
    ]


HEADS = five_classes(
    "RoFormer",
    classifier=classifier("classifier.dense", hidden_act, "classifier.out_proj"),
    masked=bert_masked(),
)
