"""RemBERT (Chung et al. 2020), as ``transformers`` saves it.

BERT with input embeddings and an output matrix of different sizes.
"""

import dataclasses

import msgspec

from export.checkpoint import Checkpoint
from export.importers.bert_tables import BertVariant, bert_body, layer_norm
from export.importers.encoders import assemble
from export.importers.head_tables import always, classifier, five_classes, hidden_act
from export.importers.heads import Head, NamedDense, masked_language_model
from export.importers.renaming import linear
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import Activation, DenseConfig

REMBERT = BertVariant(base="rembert")
PROJECTION = linear("embedding.projection", "encoder.embedding_hidden_mapping_in", bias=True)


def import_rembert(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    check_supported(config, tie_word_embeddings=(False,))
    config = Fields({**config, "tie_word_embeddings": False}, config.origin)
    folder = dataclasses.replace(folder, config=config)
    body = bert_body(config, REMBERT)
    # The projection exists even if the sizes are equal.
    size = config.positive("input_embedding_size", 256)
    body = dataclasses.replace(
        body,
        embedding=msgspec.structs.replace(body.embedding, size=size),
        table=(*body.table, *PROJECTION),
    )
    return assemble(folder, body, HEADS, "RemBertModel")


def _masked(folder: HuggingFaceFolder) -> Head:
    config, start = folder.config, "cls.predictions"
    dense = DenseConfig(
        size=config.positive("output_embedding_size", 1664),
        activation=hidden_act(config),
        norm=layer_norm(config),
    )
    named = NamedDense(linear=f"{start}.dense", norm=f"{start}.LayerNorm", config=dense)
    decoder = f"{start}.decoder"
    return masked_language_model(folder, named, decoder=decoder, bias=f"{decoder}.bias")


HEADS = five_classes(
    "RemBert",
    classifier=classifier("rembert.pooler.dense", always(Activation.TANH)),
    masked=_masked,
)
