"""How a tagger of the request's labels reads texts, and its graph their places. Imports no torch.

``export`` and ``server`` share these rules, which are those of the package ``gliner``.
"""

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from model.graph_spec import (
    LABEL_POSITIONS,
    WORD_LENGTHS,
    WORD_POSITIONS,
    Dtype,
    Record,
    Size,
    TensorSpec,
    TokenId,
)

MAX_SPAN_WORDS = 256
NO_TOKEN = -1  # the position of a word that has none
SPAN_PLACES = (
    TensorSpec(name=WORD_POSITIONS, dtype=Dtype.INT32, shape=("batch", "words")),
    TensorSpec(name=WORD_LENGTHS, dtype=Dtype.INT32, shape=("batch",)),
    TensorSpec(name=LABEL_POSITIONS, dtype=Dtype.INT32, shape=("batch", "labels")),
)
"""The inputs of a graph that scores spans, beside those of texts."""
_WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")

MaxWidth = Annotated[int, msgspec.Meta(ge=1, le=MAX_SPAN_WORDS)]


class SpanTagging(Record, frozen=True, kw_only=True):
    """The input of a model that finds the request's labels (Zaratiana et al. 2023, GLiNER).

    A text is read after the labels: a marker and the label for each, a separator, the text's words.

    Attributes:
        marker: the token before each label.
        separator: the token between the labels and the text.
        reads_marker: whether the vector of the marker represents the label; else that of the
            label's first token.
        max_width: the most words of an entity.
        max_words: the most words of a text, or of a window of it.
    """

    marker: TokenId
    separator: TokenId
    reads_marker: bool = True
    max_width: MaxWidth
    max_words: Size


def word_spans(text: str) -> list[tuple[int, int]]:
    """The start and end of each word of ``text``, in characters."""
    return [match.span() for match in _WORD.finditer(text)]


def prompt_words(labels: Sequence[str], marker: str, separator: str) -> list[str]:
    """The words before a text's: the marker and the label for each label, and the separator."""
    return [*(word for label in labels for word in (marker, label)), separator]


def span_inputs(
    words: Sequence[Sequence[int]], labels: Sequence[Sequence[int]]
) -> dict[str, npt.NDArray[np.int32]]:
    """The tensors of :data:`SPAN_PLACES`, right-padded.

    Args:
        words: of each row, the index of each word's first token; :data:`NO_TOKEN`: none.
        labels: of each row, the index of each label's token.
    """
    lengths = np.array([len(row) for row in words], np.int32)
    word_positions = np.full((len(words), lengths.max()), NO_TOKEN, np.int32)
    label_positions = np.zeros((len(labels), max(map(len, labels))), np.int32)
    for padded, rows in ((word_positions, words), (label_positions, labels)):
        for row, positions in zip(padded, rows, strict=True):
            row[: len(positions)] = positions
    return {
        WORD_POSITIONS: word_positions,
        WORD_LENGTHS: lengths,
        LABEL_POSITIONS: label_positions,
    }
