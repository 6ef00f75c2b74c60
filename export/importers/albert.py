"""ALBERT (Lan et al. 2019), as ``transformers`` saves it.

BERT with smaller embeddings and with layers that share weights.
"""

import dataclasses

import msgspec

from export.checkpoint import Checkpoint
from export.errors import SourceError
from export.importers.bert_tables import (
    EMBEDDING_NORM,
    UNUSED,
    LayerNames,
    embeddings,
    learned_positions,
    normed_embedding,
    num_layers,
    post_norm_layer,
)
from export.importers.encoders import Body, assemble
from export.importers.head_tables import always, classifier, five_classes, masked
from export.importers.renaming import Rename, linear
from export.importers.support import MAX_LAYERS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from model.config import Activation, StackConfig

PROJECTION = linear("embedding.projection", "encoder.embedding_hidden_mapping_in", bias=True)
_LAYER = "encoder.albert_layer_groups.{group}.albert_layers.{inner}"
NAMES = LayerNames(
    query=f"{_LAYER}.attention.query",
    key=f"{_LAYER}.attention.key",
    value=f"{_LAYER}.attention.value",
    attention_output=f"{_LAYER}.attention.dense",
    attention_norm=f"{_LAYER}.attention.LayerNorm",
    feed_forward_input=f"{_LAYER}.ffn",
    feed_forward_output=f"{_LAYER}.ffn_output",
    feed_forward_norm=f"{_LAYER}.full_layer_layer_norm",
)


def import_albert(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = Fields({"hidden_act": "gelu_new", **folder.config}, folder.config.origin)
    folder = dataclasses.replace(folder, config=config)
    embedding = msgspec.structs.replace(
        normed_embedding(config), size=config.positive("embedding_size", 128)
    )
    inner, groups = config.positive("inner_group_num", 1), _groups(config)
    num_held = inner * (groups[-1] + 1)
    if num_held > MAX_LAYERS:
        raise SourceError(f"{config.origin}: {num_held} distinct layers, at most {MAX_LAYERS}")
    body = Body(
        base="albert",
        hidden_size=config.positive("hidden_size"),
        position=learned_positions(config),
        embedding=embedding,
        encoder=StackConfig(
            layers=(post_norm_layer(config),) * num_held,
            order=tuple(group * inner + index for group in groups for index in range(inner)),
        ),
        table=(
            *embeddings(config),
            *EMBEDDING_NORM,
            *PROJECTION,
            *(_at(entry, layer, inner) for layer in range(num_held) for entry in NAMES.table()),
        ),
        ignored=(*UNUSED, "pooler.weight", "pooler.bias"),
    )
    return assemble(folder, body, HEADS, "AlbertModel")


def _groups(config: Fields) -> tuple[int, ...]:
    """The group of each applied layer; all groups have the same number of layers.

    Raises:
        SourceError: more groups than layers.
    """
    applied, groups = num_layers(config), config.positive("num_hidden_groups", 1)
    if groups > applied:
        raise SourceError(f"{config.origin}: num_hidden_groups is {groups}, over {applied} layers")
    return tuple(int(index / (applied / groups)) for index in range(applied))


def _at(entry: Rename, layer: int, inner: int) -> Rename:
    """``entry`` for layer number ``layer`` of the model; groups have ``inner`` layers each."""
    sources = tuple(
        source.replace("{group}", str(layer // inner)).replace("{inner}", str(layer % inner))
        for source in entry.sources
    )
    return Rename(entry.target.replace("{n}", str(layer)), sources, entry.transform)


_MASKED = masked(
    "predictions.dense",
    "predictions.LayerNorm",
    "predictions.decoder",
    "predictions.bias",
    ignored=("sop_classifier.classifier.weight", "sop_classifier.classifier.bias"),
)
HEADS = {
    **five_classes(
        "Albert",
        classifier=classifier("albert.pooler", always(Activation.TANH)),
        masked=_MASKED,
    ),
    "AlbertForPreTraining": _MASKED,
}
