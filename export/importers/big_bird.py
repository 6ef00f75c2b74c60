"""BigBird (Zaheer et al. 2020), as ``transformers`` saves it, with full attention.

``transformers`` computes block-sparse attention only for texts over a length; below it, attention
is full. So that length is the limit here.
"""

import dataclasses

import msgspec

from export.checkpoint import Checkpoint
from export.importers.bert_tables import BertVariant, bert_body
from export.importers.encoders import Body, join, read_head
from export.importers.head_tables import bert_masked, classifier, four_classes, hidden_act
from export.importers.heads import Head, HeadReader, question_answerer
from export.importers.renaming import affine, linear
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.config import StackConfig

BIG_BIRD = BertVariant(base="bert")
DEFAULT_CLASS = "BigBirdModel"
ANSWERER = "BigBirdForQuestionAnswering"
POOLER = ("pooler.weight", "pooler.bias")
NEXT_SENTENCE = ("cls.seq_relationship.weight", "cls.seq_relationship.bias")


def import_big_bird(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = Fields({"hidden_act": "gelu_new", **folder.config}, folder.config.origin)
    folder = dataclasses.replace(folder, config=config)
    body = _body(config)
    architecture, head = read_head(folder, HEADS, DEFAULT_CLASS, body.position.max_positions)
    if architecture == ANSWERER:
        body = dataclasses.replace(body, encoder=_with_feed_forward(body.encoder))
    return join(folder, body, architecture, head)


def _body(config: Fields) -> Body:
    check_supported(config, attention_type=("original_full", "block_sparse"))
    body = bert_body(
        config,
        BIG_BIRD,
        max_positions=_full_attention_limit(config),
        input_bias=config.flag("use_bias", True),
    )
    scale = body.hidden_size**0.5 if config.flag("rescale_embeddings", False) else 1.0
    return dataclasses.replace(
        body,
        embedding=msgspec.structs.replace(body.embedding, scale=scale),
        ignored=(*body.ignored, *POOLER),
    )


def _full_attention_limit(config: Fields) -> int | None:
    """The length up to which attention is full, in tokens; None if it always is."""
    if config.text("attention_type", "block_sparse") == "original_full":
        return None
    # Shorter texts have no space for global, sliding and random blocks on both sides.
    num_blocks = 5 + 2 * config.integer("num_random_blocks", 3)
    return num_blocks * config.positive("block_size", 64)


def _with_feed_forward(stack: StackConfig) -> StackConfig:
    """``stack`` with one more feed-forward: that of the question-answering head."""
    last = msgspec.structs.replace(stack.layers[-1], mixer=None, attention=None)
    return msgspec.structs.replace(stack, layers=(*stack.layers, last))


def _answerer(folder: HuggingFaceFolder) -> Head:
    head = question_answerer(folder, output="qa_classifier.qa_outputs")
    target = f"encoder.layers.{folder.config.positive('num_hidden_layers')}"
    table = (
        *head.table,
        *linear(f"{target}.feed_forward.input", "qa_classifier.intermediate.dense", bias=True),
        *linear(f"{target}.feed_forward.output", "qa_classifier.output.dense", bias=True),
        *affine(f"{target}.feed_forward_norm", "qa_classifier.output.LayerNorm"),
    )
    return dataclasses.replace(head, table=table)


_MASKED = bert_masked(NEXT_SENTENCE)
HEADS: dict[str, HeadReader] = {
    **four_classes(
        "BigBird",
        classifier=classifier("classifier.dense", hidden_act, "classifier.out_proj"),
        masked=_MASKED,
    ),
    ANSWERER: _answerer,
    "BigBirdForPreTraining": _MASKED,
}
