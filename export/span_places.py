"""Where rows have words and labels, for the graph of an encoder that scores spans."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from export.runtime import Array
from model.graph_spec import LABEL_POSITIONS, WORD_LENGTHS, WORD_POSITIONS
from model.span_head import SpanPlaces

NO_TOKEN = -1


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
    lengths = np.array([len(row.words) for row in places], np.int32)
    words = np.full((len(places), lengths.max()), NO_TOKEN, np.int32)
    labels = np.zeros((len(places), max(len(row.labels) for row in places)), np.int32)
    for index, row in enumerate(places):
        words[index, : len(row.words)] = row.words
        labels[index, : len(row.labels)] = row.labels
    return {WORD_POSITIONS: words, WORD_LENGTHS: lengths, LABEL_POSITIONS: labels}


def eager_inputs(places: Sequence[RowPlaces]) -> SpanPlaces:
    """The same for the eager module."""
    return SpanPlaces(*map(torch.from_numpy, graph_inputs(places).values()))
