"""BERT (Devlin et al. 2018), as ``transformers`` saves it, with any of its heads."""

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.bert_tables import (
    UNUSED,
    LayerNames,
    embeddings,
    layer_norm,
    learned_positions,
    normed_embedding,
    num_layers,
    post_norm_layer,
)
from export.importers.encoders import Body, assemble
from export.importers.heads import (
    Head,
    HeadReader,
    NamedDense,
    masked_language_model,
    question_answerer,
    sequence_classifier,
    token_classifier,
)
from export.importers.renaming import per_layer
from export.importers.sentence_transformers import embedder
from export.readers.hugging_face import HuggingFaceFolder
from model.config import Activation, DenseConfig, StackConfig

# Next-sentence prediction, beside a masked language model.
NEXT_SENTENCE = ("cls.seq_relationship.weight", "cls.seq_relationship.bias")


def import_bert(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: as their names say.
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


def _sequence_classifier(folder: HuggingFaceFolder) -> Head:
    size = folder.config.positive("hidden_size")
    pooler = DenseConfig(size=size, activation=Activation.TANH)
    return sequence_classifier(folder, NamedDense(linear="bert.pooler.dense", config=pooler))


def _masked_language_model(folder: HuggingFaceFolder) -> Head:
    config, start = folder.config, "cls.predictions"
    transform = DenseConfig(
        size=config.positive("hidden_size"),
        activation=activation(config, "hidden_act", "gelu"),
        norm=layer_norm(config),
    )
    return masked_language_model(
        folder,
        NamedDense(
            linear=f"{start}.transform.dense",
            norm=f"{start}.transform.LayerNorm",
            config=transform,
        ),
        decoder=f"{start}.decoder",
        bias=f"{start}.bias",
        ignored=NEXT_SENTENCE,
    )


HEADS: dict[str, HeadReader] = {
    "BertModel": embedder,
    "BertForSequenceClassification": _sequence_classifier,
    "BertForTokenClassification": token_classifier,
    "BertForQuestionAnswering": question_answerer,
    "BertForMaskedLM": _masked_language_model,
    "BertForPreTraining": _masked_language_model,
}
