"""The head that scores spans of words against the request's labels.

GLiNER (Zaratiana et al. 2023, arXiv 2311.08526, section 2.2): an encoder reads the labels, each
after a marker, and then the words. A span's vector is ``MLP([relu(a_i); relu(b_j)])`` of its first
word ``i`` and its last word ``j`` (span mode markerV0 of the package ``gliner``), and its score for
a label is the dot product with the vector of the label's marker after another network.
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.basics import Linear
from model.config import ModelConfig
from model.heads import Dense
from model.kernels import ModelKernels
from model.layers import select_tokens
from model.mixers import required
from model.recurrent_cells import Cell
from model.recurrent_config import CellKind

EXPANSION = 4  # of the inner layer of each network


class SpanPlaces(NamedTuple):
    """Where the words and the labels of each row are.

    ``words [batch, words]``: the index of each word's first token; -1: none, as in padding.
    ``num_words [batch]``. ``labels [batch, labels]``: the index of each label's token.
    """

    words: Tensor
    num_words: Tensor
    labels: Tensor


class _Network(nn.Module):
    """Two linear maps around a rectifier; ``size`` features in and out."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.input = Linear(size, EXPANSION * size, bias=True)
        self.output = Linear(EXPANSION * size, size, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.output(self.input(x).relu())
        return y


class SpanHead(nn.Module):
    """Logits of the spans of up to ``max_width`` words, for each label.

    The span's network has the weights ``W [2 size, inner]`` and ``V [inner, size]``. Its first
    product is the sum of a term of each end, so it runs once for each word instead of for each
    span; and the second is applied to the labels: ``(x V + c) . p = x . (V p) + c . p``.

    Raises:
        ValueError: the configuration has no spans.
    """

    def __init__(self, model: ModelConfig, kernels: ModelKernels) -> None:
        super().__init__()
        spans = required(model.head.spans)
        sizes = [model.hidden_size, *(dense.size for dense in model.head.dense)]
        pairs = zip(sizes[:-1], model.head.dense, strict=True)
        self.dense = nn.Sequential(*(Dense(*pair) for pair in pairs))
        size, self.kernels = sizes[-1], kernels
        self.max_width = spans.max_width
        self.recurrent = nn.ModuleList(
            nn.ModuleList(Cell(CellKind.LSTM, size, size // 2) for _ in range(2))
            for _ in range(spans.num_recurrent_layers)
        )
        self.start, self.end, self.label = (_Network(size) for _ in range(3))
        inner = EXPANSION * size
        self.from_start = Linear(size, inner, bias=False)
        self.from_end = Linear(size, inner, bias=True)
        self.key = Linear(size, inner, bias=False)  # the transposed V
        self.offset = Linear(size, 1, bias=False)  # c

    def forward(self, hidden: Tensor, places: SpanPlaces) -> Tensor:
        """``hidden [batch, length, size]`` to ``[batch, words, max_width, labels]``.

        Index ``[i, k]`` is the span of words ``i`` to ``i + k``; 0 if it is beyond the last word.
        """
        x = self.dense(hidden)
        words = self._read_words(_select(x, places.words), places.num_words)
        labels = self.label(_select(x, places.labels))
        keys, offset = self.key(labels).transpose(1, 2), self.offset(labels).transpose(1, 2)
        first = self.from_start(self.start(words).relu())
        last = self.from_end(self.end(words).relu())
        count = words.shape[1]
        last = functional.pad(last, (0, 0, 0, self.max_width - 1))
        # One width at a time: all spans' inner vectors would take max_width times the memory.
        by_width = [
            (first + last[:, width : width + count]).relu() @ keys + offset
            for width in range(self.max_width)
        ]
        logits = torch.stack(by_width, 2)
        ends = torch.arange(count)[:, None] + torch.arange(self.max_width)
        is_inside = ends < places.num_words[:, None, None]
        return torch.where(is_inside[..., None], logits, 0.0)

    def _read_words(self, x: Tensor, num_words: Tensor) -> Tensor:
        """Runs the recurrent layers over ``x [batch, words, size]``."""
        for cells in cast(Sequence[Sequence[Cell]], self.recurrent):
            runs = [
                self.kernels.recurrent(x, num_words, cell.weights, cell.kind, reverse=is_reverse)
                for cell, is_reverse in zip(cells, (False, True), strict=True)
            ]
            x = torch.cat([run.outputs for run in runs], -1)
        return x


def _select(x: Tensor, positions: Tensor) -> Tensor:
    """The vectors ``[batch, n, size]`` at ``positions [batch, n]``; zeros for -1."""
    batch, length, size = x.shape
    rows = torch.arange(batch)[:, None] * length
    chosen = select_tokens(x, (rows + positions.clamp(min=0)).flatten())
    chosen = chosen.reshape(batch, positions.shape[1], size)
    return torch.where((positions >= 0)[..., None], chosen, 0.0)
