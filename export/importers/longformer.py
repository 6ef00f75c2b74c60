"""Longformer (Beltagy et al. 2020), as ``transformers`` saves it: RoBERTa with a window.

Global tokens are those of ``transformers`` for the task: the first token of a text in the
classifier, all tokens before the first separator in question answering. Its other classes leave
the choice to the caller; here, they use the classifier's.
"""

import msgspec

from export.checkpoint import Checkpoint
from export.errors import SourceError, UnsupportedError
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
from export.importers.encoders import Body, join, read_head
from export.importers.head_tables import FAIRSEQ_CLASSIFIER, FAIRSEQ_MASKED, five_classes
from export.importers.renaming import linear, per_layer
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from model.config import LayerConfig, StackConfig
from model.mixers import required

# For a question, as many tokens as one block of the window holds, but at most 128: every block
# reserves space for them.
MAX_GLOBAL_TOKENS = {"LongformerForQuestionAnswering": 128}
DEFAULT_GLOBAL_TOKENS = 1
DEFAULT_CLASS = "LongformerModel"
PAD, SEPARATOR = 1, 2
_TARGET = "encoder.layers.{n}.mixer.global_tokens"
_SELF = "encoder.layer.{n}.attention.self"
GLOBAL_TOKENS = (
    *linear(f"{_TARGET}.query", f"{_SELF}.query_global", bias=True),
    *linear(f"{_TARGET}.key_value", f"{_SELF}.key_global", f"{_SELF}.value_global", bias=True),
)


def import_longformer(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    first = config.integer("pad_token_id", PAD) + 1
    position = learned_positions(config, first=first)
    architecture, head = read_head(folder, HEADS, DEFAULT_CLASS, position.max_positions)
    separator = None
    if architecture in MAX_GLOBAL_TOKENS:
        separator = config.integer("sep_token_id", SEPARATOR)
    layers = windowed(
        config,
        post_norm_layer(config),
        num_layers(config),
        MAX_GLOBAL_TOKENS.get(architecture, DEFAULT_GLOBAL_TOKENS),
    )
    body = Body(
        base="longformer",
        hidden_size=config.positive("hidden_size"),
        position=position,
        embedding=normed_embedding(config),
        encoder=StackConfig(layers=layers, global_before=separator),
        table=(
            *embeddings(config, first_position=first),
            *EMBEDDING_NORM,
            *per_layer((*LayerNames().table(), *GLOBAL_TOKENS), len(layers)),
        ),
        ignored=UNUSED,
        allows_unattended=False,
    )
    return join(folder, body, architecture, head)


def windowed(
    config: Fields, layer: LayerConfig, number: int, max_global_tokens: int
) -> tuple[LayerConfig, ...]:
    """``number`` of ``layer``, each with its own window, half of it on each side of a token.

    Raises:
        SourceError, UnsupportedError: the windows do not fit the layers, or are not even.
    """
    sizes = config.integers("attention_window") or (512,)
    if len(sizes) == 1:
        sizes *= number
    if len(sizes) != number:
        raise SourceError(f"{config.origin}: {len(sizes)} attention_window for {number} layers")
    if any(size % 2 or size == 0 for size in sizes):
        raise UnsupportedError(f"{config.origin}: attention_window {sizes} is not even")
    attention = required(layer.attention)
    return tuple(
        msgspec.structs.replace(
            layer,
            attention=msgspec.structs.replace(
                attention,
                window=size // 2 + 1,
                num_global_tokens=min(max_global_tokens, size // 2),
            ),
        )
        for size in sizes
    )


HEADS = five_classes("Longformer", classifier=FAIRSEQ_CLASSIFIER, masked=FAIRSEQ_MASKED)
