"""MPNet (Song et al. 2020), as ``transformers`` saves it.

BERT without token types; all layers share a relative position bias with T5's buckets.
"""

import msgspec

from export.checkpoint import Checkpoint
from export.importers.bert_tables import (
    EMBEDDING_NORM,
    TOKENS,
    UNUSED,
    LayerNames,
    later_positions,
    layer_norm,
    learned_positions,
    num_layers,
    post_norm_layer,
)
from export.importers.encoders import Body, assemble
from export.importers.head_tables import FAIRSEQ_CLASSIFIER, FAIRSEQ_MASKED, five_classes
from export.importers.renaming import Rename, per_layer
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import EmbeddingConfig, LayerConfig, StackConfig
from model.mixers import required
from model.position_config import RelativeBiasConfig, RelativeBiasKind

NUM_BUCKETS = 32  # constant in transformers, whatever the table's size
FIRST_POSITION = 2
BIAS = Rename("encoder.positions.biases.0.weight", ("encoder.relative_attention_bias.weight",))
_LAYER = "encoder.layer.{n}"
NAMES = LayerNames(
    query=f"{_LAYER}.attention.attn.q",
    key=f"{_LAYER}.attention.attn.k",
    value=f"{_LAYER}.attention.attn.v",
    attention_output=f"{_LAYER}.attention.attn.o",
    attention_norm=f"{_LAYER}.attention.LayerNorm",
)


def import_mpnet(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    check_supported(config, relative_attention_num_buckets=(NUM_BUCKETS,))
    layers = (_layer(config),) * num_layers(config)
    body = Body(
        base="mpnet",
        hidden_size=config.positive("hidden_size"),
        position=learned_positions(config, first=FIRST_POSITION),
        embedding=EmbeddingConfig(norm=layer_norm(config)),
        encoder=StackConfig(layers=layers),
        table=(
            *(TOKENS, later_positions(FIRST_POSITION), *EMBEDDING_NORM, BIAS),
            *per_layer(NAMES.table(), len(layers)),
        ),
        ignored=UNUSED,
    )
    return assemble(folder, body, HEADS, "MPNetModel")


def _layer(config: Fields) -> LayerConfig:
    layer = post_norm_layer(config)
    bias = RelativeBiasConfig(
        kind=RelativeBiasKind.BUCKETS, num_buckets=NUM_BUCKETS, max_distance=128
    )
    attention = msgspec.structs.replace(required(layer.attention), bias=bias)
    return msgspec.structs.replace(layer, attention=attention)


HEADS = five_classes("MPNet", classifier=FAIRSEQ_CLASSIFIER, masked=FAIRSEQ_MASKED)
