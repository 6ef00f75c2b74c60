"""Where rows have words and labels, for the graph of an encoder that scores spans."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from tokenizers import Tokenizer

from export.runtime import Array
from model.bundle import SpanTagging
from model.span_head import SpanPlaces
from model.span_tagging import NO_TOKEN, prompt_words, span_inputs, word_spans

LABELS = ("person", "organization", "location", "date")  # of texts on which exports are measured


class RowPlaces(NamedTuple):
    """A row's index of each word's first token, -1 for none; and of each label's token."""

    words: list[int]
    labels: list[int]

    @classmethod
    def of_length(cls, length: int) -> "RowPlaces":
        """Words at every second token and one without tokens; two labels, or three."""
        words = [*range(0, length, 2), NO_TOKEN, length - 1]
        return cls(words, [0, length // 2, length - 1][: 2 + length % 2])


def graph_inputs(places: Sequence[RowPlaces]) -> dict[str, Array]:
    """The graph's inputs of the rows, right-padded."""
    return {**span_inputs([row.words for row in places], [row.labels for row in places])}


def eager_inputs(places: Sequence[RowPlaces]) -> SpanPlaces:
    """The same for the eager module."""
    return SpanPlaces(*map(torch.from_numpy, graph_inputs(places).values()))


class PromptedRow(NamedTuple):
    """Token ids of the labels and a text, and the places of the labels and the words."""

    ids: list[int]
    places: RowPlaces


def prompted_row(
    tokenizer: Tokenizer, spec: SpanTagging, text: str, max_tokens: int
) -> PromptedRow | None:
    """``text`` after :data:`LABELS`, as the server passes it to the model, cut after a word.

    Words without tokens are left out. None if not even one word fits into ``max_tokens``, or if the
    tokenizer lacks a token.
    """
    marker, separator = (tokenizer.id_to_token(id_) for id_ in (spec.marker, spec.separator))
    if marker is None or separator is None:
        return None
    prompt = prompt_words(LABELS, marker, separator)
    words = [text[start:end] for start, end in word_spans(text)][: spec.max_words]
    whole = tokenizer.encode([*prompt, *words], is_pretokenized=True)
    first: dict[int, int] = {}
    for position, word in enumerate(whole.word_ids[:max_tokens]):
        if word is not None:
            first.setdefault(word, position)
    if max(first, default=-1) < len(prompt):
        return None
    shift = 0 if spec.reads_marker else 1
    labels = [first[word] + shift for word in range(0, len(prompt) - 1, 2)]
    places = [first[word] for word in first if word >= len(prompt)]
    return PromptedRow(whole.ids[:max_tokens], RowPlaces(places, labels))
