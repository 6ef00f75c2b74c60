"""The heads of transformers' encoders, for importers of all families.

Families differ in the dense layers before the output and in the names of the weights. An
importer's table maps each class to a function of this module.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from export.errors import UnsupportedError
from export.importers.edit_tags import are_edit_tags, read_edit_tags
from export.importers.renaming import Rename, affine, linear
from export.importers.support import MAX_LABELS
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import lookup
from model.bundle import (
    EditVocabulary,
    Embedding,
    PairTemplate,
    ScoreFunction,
    SpanTagging,
    Task,
)
from model.config import DenseConfig, HeadConfig, HeadKind, PoolingKind

SCORE_FUNCTIONS = {
    "single_label_classification": ScoreFunction.SOFTMAX,
    "multi_label_classification": ScoreFunction.SIGMOID,
    "regression": ScoreFunction.IDENTITY,
}
SENTENCE_TRANSFORMERS_FILE = "config_sentence_transformers.json"
# Functions of sentence-transformers' CrossEncoder, by the last part of the class's name.
ACTIVATION_FUNCTIONS = {
    "Sigmoid": ScoreFunction.SIGMOID,
    "Softmax": ScoreFunction.SOFTMAX,
    "Identity": ScoreFunction.IDENTITY,
}


@dataclass(frozen=True, kw_only=True)
class Head:
    """A class's head and its tasks.

    Attributes:
        table: its weights.
        ignored: weights that the checkpoint may have but the model does not need.
        copies: as in :func:`export.importers.renaming.rename`.
        weights: weights from separate files.
    """

    config: HeadConfig
    tasks: tuple[Task, ...]
    table: tuple[Rename, ...] = ()
    ignored: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    score_function: ScoreFunction | None = None
    edits: EditVocabulary | None = None
    embedding: Embedding | None = None
    pair_template: PairTemplate | None = None
    span_tagging: SpanTagging | None = None
    max_input_tokens: int | None = None
    weights: Mapping[str, Tensor] = field(default_factory=dict)


HeadReader = Callable[[HuggingFaceFolder], Head]


@dataclass(frozen=True, kw_only=True)
class NamedDense:
    """A dense layer before the output; ``linear`` and ``norm`` are prefixes of its weights."""

    linear: str
    config: DenseConfig
    norm: str | None = None

    def table(self, index: int) -> tuple[Rename, ...]:
        """Maps its weights to those of the head's dense layer number ``index``."""
        target = f"head.dense.{index}"
        entries = linear(f"{target}.linear", self.linear, bias=self.config.bias)
        if self.norm is not None:
            weight_and_bias = affine(f"{target}.norm", self.norm)
            has_bias = self.config.norm is None or self.config.norm.bias
            entries += weight_and_bias if has_bias else weight_and_bias[:1]
        return tuple(entries)


def _tables(dense: tuple[NamedDense, ...]) -> tuple[Rename, ...]:
    return tuple(entry for index, map_ in enumerate(dense) for entry in map_.table(index))


def _configs(dense: tuple[NamedDense, ...]) -> tuple[DenseConfig, ...]:
    return tuple(map_.config for map_ in dense)


def sequence_classifier(
    folder: HuggingFaceFolder,
    *dense: NamedDense,
    output: str = "classifier",
    pooling: PoolingKind = PoolingKind.CLS,
    bias: bool = True,
    pools_last: bool = False,
) -> Head:
    """Labels of a text, a pair or an image; a single label is a relevance score of a pair.

    ``bias``: whether the output has a bias.
    """
    table = (*_tables(dense), *linear("head.output", output, bias=bias))
    return classifier(folder, pooling, table, _configs(dense), bias=bias, pools_last=pools_last)


def classifier(
    folder: HuggingFaceFolder,
    pooling: PoolingKind,
    table: tuple[Rename, ...],
    dense: tuple[DenseConfig, ...] = (),
    *,
    bias: bool = True,
    pools_last: bool = False,
) -> Head:
    """As :func:`sequence_classifier`, with the ``table`` of all the head's weights."""
    labels = read_labels(folder.config)
    config = HeadConfig(
        kind=HeadKind.CLASSIFICATION,
        bias=bias,
        pooling=pooling,
        pools_last=pools_last,
        dense=dense,
        num_labels=len(labels),
    )
    return Head(
        config=config,
        tasks=(Task.CLASSIFY, Task.RERANK) if len(labels) == 1 else (Task.CLASSIFY,),
        table=table,
        labels=labels,
        score_function=score_function(folder, len(labels)),
    )


def token_classifier(
    folder: HuggingFaceFolder, *dense: NamedDense, output: str = "classifier", bias: bool = True
) -> Head:
    """A label per token: of an entity or, if one label is ``$KEEP``, of an edit.

    ``bias``: whether the output has a bias.
    """
    config = folder.config
    labels = read_labels(config)
    if not are_edit_tags(labels):
        return _token_head(dense, output, labels, Task.TAG, bias=bias)
    edits = EditVocabulary(
        edits=read_edit_tags(labels, config.origin),
        min_score=config.number("min_edit_score", 0.0),
    )
    head = _token_head(dense, output, labels, Task.CORRECT, bias=bias)
    return replace(head, edits=edits, max_input_tokens=config.optional_integer("max_input_tokens"))


def question_answerer(
    folder: HuggingFaceFolder, *dense: NamedDense, output: str = "qa_outputs"
) -> Head:
    """Extractive question answering: each token has a start and an end logit."""
    labels = read_labels(folder.config)
    if len(labels) != 2:
        raise UnsupportedError(
            f"{folder.config.origin}: {len(labels)} labels; question answering has two"
        )
    return _token_head(dense, output, ("start", "end"), Task.ANSWER)


def _token_head(
    dense: tuple[NamedDense, ...],
    output: str,
    labels: tuple[str, ...],
    task: Task,
    *,
    bias: bool = True,
) -> Head:
    config = HeadConfig(
        kind=HeadKind.TOKEN_CLASSIFICATION,
        bias=bias,
        dense=_configs(dense),
        num_labels=len(labels),
    )
    table = (*_tables(dense), *linear("head.output", output, bias=bias))
    return Head(config=config, tasks=(task,), table=table, labels=labels)


def masked_language_model(
    folder: HuggingFaceFolder,
    *dense: NamedDense,
    decoder: str,
    bias: str | None,
    ignored: tuple[str, ...] = (),
    has_own_bias: bool = True,
) -> Head:
    """A masked language model.

    Args:
        folder: the checkpoint's folder.
        dense: the layer before the output.
        decoder: prefix of the output's weights, used if the output is not tied.
        bias: the bias of an output that is tied to the embedding, if it has one.
        ignored: weights of the class that the model does not need.
        has_own_bias: whether an untied output adds its own bias instead of ``bias``.
    """
    tied = folder.config.flag("tie_word_embeddings", True)
    config = HeadConfig(
        kind=HeadKind.LANGUAGE_MODEL, bias=bias is not None, tied=tied, dense=_configs(dense)
    )
    table = _tables(dense)
    if not tied:
        has_own_bias = has_own_bias and bias is not None
        table += tuple(linear("head.output", decoder, bias=has_own_bias))
    if bias is not None and (tied or not has_own_bias):
        table += (Rename("head.output.bias", (bias,)),)
    copies: dict[str, str] = {}
    if tied:
        copies[f"{decoder}.weight"] = "embedding.tokens.weight"
        copies[f"{decoder}.bias"] = "head.output.bias"
    elif bias is not None:
        # transformers saves this bias too, but adds the output's own.
        ignored = (*ignored, bias)
    return Head(config=config, tasks=(Task.FILL_MASK,), table=table, ignored=ignored, copies=copies)


def read_labels(config: Fields) -> tuple[str, ...]:
    """The names of ``id2label``, in order; without it ``LABEL_0``, ``LABEL_1`` and so on.

    As in ``transformers``, another number in ``num_labels`` replaces the names.
    """
    names = config.fields("id2label")
    number = config.positive("num_labels", len(names) or 2, maximum=MAX_LABELS)
    if len(names) != number:
        return tuple(f"LABEL_{index}" for index in range(number))
    return tuple(names.text(str(index)) for index in range(len(names)))


def score_function(folder: HuggingFaceFolder, num_labels: int) -> ScoreFunction:
    """The score function of transformers' pipeline or sentence-transformers' CrossEncoder.

    Raises:
        UnsupportedError: another function.
    """
    config, saved = folder.config, folder.read_json(SENTENCE_TRANSFORMERS_FILE)
    encoder = config.fields("sentence_transformers")
    name = encoder.text("activation_fn", config.text("sbert_ce_default_activation_function", ""))
    if isinstance(saved, dict) and num_labels == 1:  # several labels: always the identity
        name = Fields(saved, SENTENCE_TRANSFORMERS_FILE).text("activation_fn", name)
    if name:
        return lookup(ACTIVATION_FUNCTIONS, name.rpartition(".")[2], "activation_fn")
    default = ScoreFunction.SIGMOID if num_labels == 1 else ScoreFunction.SOFTMAX
    problem = config.text("problem_type", "")
    if not problem:
        return default
    return lookup(SCORE_FUNCTIONS, problem, f"{config.origin}: problem_type")
