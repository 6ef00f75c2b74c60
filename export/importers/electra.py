"""ELECTRA (Clark et al. 2020), as ``transformers`` saves it.

BERT; embeddings may be smaller than the hidden size.
"""

import dataclasses
from collections.abc import Iterable

from export.checkpoint import Checkpoint
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
from export.importers.heads import Head
from export.importers.renaming import Rename, linear, per_layer
from export.importers.sentence_transformers import embedder
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from model.config import Activation, LayerConfig, StackConfig

PROJECTION = linear("embedding.projection", "embeddings_project", bias=True)


def import_electra(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    body = body_of(config, "electra", post_norm_layer(config), LayerNames().table())
    return assemble(folder, body, HEADS, "ElectraModel")


def body_of(config: Fields, base: str, layer: LayerConfig, layer_table: Iterable[Rename]) -> Body:
    """ELECTRA, all of whose layers are ``layer``; ``layer_table`` has the weights of one."""
    embedding = normed_embedding(config)
    return Body(
        base=base,
        hidden_size=config.positive("hidden_size"),
        position=learned_positions(config),
        embedding=embedding,
        encoder=StackConfig(layers=(layer,) * num_layers(config)),
        table=(
            *embeddings(config),
            *EMBEDDING_NORM,
            *(() if embedding.size is None else PROJECTION),
            *per_layer(layer_table, num_layers(config)),
        ),
        ignored=UNUSED,
    )


DISCRIMINATOR = tuple(
    f"discriminator_predictions.{name}.{kind}"
    for name in ("dense", "dense_prediction")
    for kind in ("weight", "bias")
)


def _discriminator(folder: HuggingFaceFolder) -> Head:
    """The published pretraining model, without the head that detects replaced tokens."""
    return dataclasses.replace(embedder(folder), ignored=DISCRIMINATOR)


HEADS = {
    **five_classes(
        "Electra",
        classifier=classifier("classifier.dense", always(Activation.GELU), "classifier.out_proj"),
        masked=masked(
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            "generator_lm_head",
            "generator_lm_head.bias",
            always(Activation.GELU),
        ),
    ),
    "ElectraForPreTraining": _discriminator,
}
