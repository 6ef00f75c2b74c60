"""BERT (Devlin et al. 2018), as ``transformers`` saves it, with any of its heads."""

from export.checkpoint import Checkpoint
from export.importers.bert_tables import (
    UNUSED,
    LayerNames,
    embeddings,
    learned_positions,
    normed_embedding,
    num_layers,
    post_norm_layer,
)
from export.importers.encoders import Body, assemble
from export.importers.head_tables import always, bert_masked, classifier, five_classes
from export.importers.renaming import per_layer
from export.readers.hugging_face import HuggingFaceFolder
from model.config import Activation, StackConfig

# The next-sentence prediction of BertForPreTraining.
NEXT_SENTENCE = ("cls.seq_relationship.weight", "cls.seq_relationship.bias")


def import_bert(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    layers = (post_norm_layer(config),) * num_layers(config)
    body = Body(
        base="bert",
        hidden_size=config.positive("hidden_size"),
        position=learned_positions(config),
        embedding=normed_embedding(config),
        encoder=StackConfig(layers=layers),
        table=(*embeddings(config), *per_layer(LayerNames().table(), len(layers))),
        ignored=UNUSED,
    )
    return assemble(folder, body, HEADS, "BertModel")


_MASKED = bert_masked(NEXT_SENTENCE)
HEADS = {
    **five_classes(
        "Bert",
        classifier=classifier("bert.pooler.dense", always(Activation.TANH)),
        masked=_MASKED,
    ),
    "BertForPreTraining": _MASKED,
}
