"""DistilBERT (Sanh et al. 2019), as ``transformers`` saves it: BERT without token types."""

import dataclasses

from export.checkpoint import Checkpoint
from export.importers.bert_tables import (
    EMBEDDING_NORM,
    POSITIONS,
    TOKENS,
    UNUSED,
    LayerNames,
    layer_norm,
    learned_positions,
    num_layers,
    post_norm_layer,
)
from export.importers.encoders import Body, assemble
from export.importers.head_tables import always, classifier, five_classes, masked
from export.importers.renaming import per_layer
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from model.config import Activation, EmbeddingConfig, StackConfig

# BERT's configuration fields and DistilBERT's names for them.
FIELDS = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
}
EPSILON = 1e-12  # of transformers' code, which reads no layer_norm_eps
_LAYER = "transformer.layer.{n}"
NAMES = LayerNames(
    query=f"{_LAYER}.attention.q_lin",
    key=f"{_LAYER}.attention.k_lin",
    value=f"{_LAYER}.attention.v_lin",
    attention_output=f"{_LAYER}.attention.out_lin",
    attention_norm=f"{_LAYER}.sa_layer_norm",
    feed_forward_input=f"{_LAYER}.ffn.lin1",
    feed_forward_output=f"{_LAYER}.ffn.lin2",
    feed_forward_norm=f"{_LAYER}.output_layer_norm",
)


def import_distilbert(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    original = folder.config
    renamed = {field: original[name] for field, name in FIELDS.items() if name in original}
    config = Fields({**original, **renamed, "layer_norm_eps": EPSILON}, original.origin)
    folder = dataclasses.replace(folder, config=config)
    layers = (post_norm_layer(config),) * num_layers(config)
    body = Body(
        base="distilbert",
        hidden_size=config.positive("hidden_size"),
        position=learned_positions(config),
        embedding=EmbeddingConfig(norm=layer_norm(config)),
        encoder=StackConfig(layers=layers),
        table=(TOKENS, POSITIONS, *EMBEDDING_NORM, *per_layer(NAMES.table(), len(layers))),
        ignored=UNUSED,
    )
    return assemble(folder, body, HEADS, "DistilBertModel")


HEADS = five_classes(
    "DistilBert",
    classifier=classifier("pre_classifier", always(Activation.RELU)),
    masked=masked("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"),
)
