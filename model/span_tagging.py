"""How a tagger of the request's labels reads texts. Imports no torch.

``export`` and ``server`` share these rules, which are those of the package ``gliner``.
"""

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec

from model.graph_spec import Record, Size, TokenId

MAX_SPAN_WORDS = 256
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
