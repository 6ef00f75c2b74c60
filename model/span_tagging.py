"""How a tagger of the request's labels reads texts. Imports no torch."""

from typing import Annotated

import msgspec

from model.graph_spec import Record, Size, TokenId

MAX_SPAN_WORDS = 256

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
