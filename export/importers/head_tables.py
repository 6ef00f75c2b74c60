"""Head readers for the classes of each encoder family in transformers."""

from collections.abc import Callable

from export.importers.activations import activation
from export.importers.bert_tables import layer_norm
from export.importers.heads import (
    Head,
    HeadReader,
    NamedDense,
    masked_language_model,
    question_answerer,
    sequence_classifier,
    token_classifier,
)
from export.importers.sentence_transformers import embedder
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from model.config import Activation, DenseConfig

ActivationOf = Callable[[Fields], Activation]


def four_classes(
    family: str, *, classifier: HeadReader, masked: HeadReader
) -> dict[str, HeadReader]:
    """The head reader of each class of ``family``, by the class's name.

    The token classifier has no dense layer before the output.
    """
    return {
        f"{family}Model": embedder,
        f"{family}ForSequenceClassification": classifier,
        f"{family}ForTokenClassification": token_classifier,
        f"{family}ForMaskedLM": masked,
    }


def five_classes(
    family: str, *, classifier: HeadReader, masked: HeadReader
) -> dict[str, HeadReader]:
    """:func:`four_classes`, and a question-answering class without a dense layer."""
    return {
        **four_classes(family, classifier=classifier, masked=masked),
        f"{family}ForQuestionAnswering": question_answerer,
    }


def always(chosen: Activation) -> ActivationOf:
    """A fixed activation, independent of the configuration."""
    return lambda _config: chosen


def hidden_act(config: Fields) -> Activation:
    """The activation of the feed-forwards."""
    return activation(config, "hidden_act", "gelu")


def classifier(linear: str, act: ActivationOf, output: str = "classifier") -> HeadReader:
    """A dense layer on a text's first token, then the labels.

    Args:
        linear: prefix of the dense layer's weights.
        act: its activation.
        output: prefix of the output's weights.
    """

    def read(folder: HuggingFaceFolder) -> Head:
        dense = DenseConfig(
            size=folder.config.positive("hidden_size"), activation=act(folder.config)
        )
        return sequence_classifier(folder, NamedDense(linear=linear, config=dense), output=output)

    return read


def masked(
    linear: str,
    norm: str,
    decoder: str,
    bias: str,
    act: ActivationOf = hidden_act,
    ignored: tuple[str, ...] = (),
    has_own_bias: bool = True,
) -> HeadReader:
    """A dense layer to the size of the embeddings, a norm, then the vocabulary.

    The arguments are those of :func:`export.importers.heads.masked_language_model`.
    """

    def read(folder: HuggingFaceFolder) -> Head:
        config = folder.config
        size = config.optional_integer("embedding_size") or config.positive("hidden_size")
        dense = DenseConfig(size=size, activation=act(config), norm=layer_norm(config))
        return masked_language_model(
            folder,
            NamedDense(linear=linear, norm=norm, config=dense),
            decoder=decoder,
            bias=bias,
            ignored=ignored,
            has_own_bias=has_own_bias,
        )

    return read


def bert_masked(ignored: tuple[str, ...] = ()) -> HeadReader:
    """:func:`masked` with BERT's names."""
    start = "cls.predictions"
    return masked(
        f"{start}.transform.dense",
        f"{start}.transform.LayerNorm",
        f"{start}.decoder",
        f"{start}.bias",
        ignored=ignored,
    )


# With the names of fairseq's models: RoBERTa and its successors.
FAIRSEQ_CLASSIFIER = classifier("classifier.dense", always(Activation.TANH), "classifier.out_proj")
FAIRSEQ_MASKED = masked(
    "lm_head.dense",
    "lm_head.layer_norm",
    "lm_head.decoder",
    "lm_head.bias",
    always(Activation.GELU),
)
