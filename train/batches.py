"""Rows of token ids or images, batches of them, and the order in which training sees them."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from model.images import Pixels

IGNORED = -100  # a target that the loss ignores


@dataclass(frozen=True, kw_only=True)
class Row:
    """One tokenized example.

    Attributes:
        inputs: ids for an encoder or a decoder; for an image, one zero per vector.
        targets: one per input; or one label; or the first and last token of an answer.
        sources: source ids, for an encoder-decoder.
        segments: one per input, for an encoder.
        follows: whether the second text follows the first: 0, 1 or :data:`IGNORED`.
        pixels: an image, ``[height, width, channels]``.
        num_image_tokens: number of vectors of an image beside a text.
        documents: the documents of a query, the relevant one first.
        num_attended: number of a query's tokens that are attended to; None: all.
    """

    inputs: list[int]
    targets: list[int]
    sources: list[int] | None = None
    segments: list[int] | None = None
    follows: int = IGNORED
    pixels: Pixels | None = field(default=None, compare=False)
    num_image_tokens: int = 0
    documents: Sequence[list[int]] = ()
    num_attended: int | None = None

    @property
    def length(self) -> int:
        """Length of source or input (the longer) plus the image; of a query plus its documents."""
        if self.documents:
            longest = max(map(len, (self.inputs, *self.documents)))
            return (1 + len(self.documents)) * longest
        return max(len(self.inputs), len(self.sources or ())) + self.num_image_tokens


class Documents(NamedTuple):
    """``ids [documents, length]``, right-padded to ``lengths [documents]``."""

    ids: Tensor
    lengths: Tensor


@dataclass(frozen=True, kw_only=True)
class TrainingBatch:
    """Right-padded rows.

    Attributes:
        inputs: ``[batch, length]``
        lengths: ``[batch]``, valid ids of each row.
        targets: ``[batch, targets]``, :data:`IGNORED` where the loss leaves a position out.
        sources: ``[batch, source_length]``, for an encoder-decoder.
        source_lengths: ``[batch]``
        segments: ``[batch, length]``, for an encoder.
        follows: ``[batch]``
        pixels: ``[batch, height, width, channels]``, uint8, for images.
        attended: ``[batch]``, number of each query's ids that are attended to.
        documents: the documents of all queries, each once; ``targets`` are the indices of the
            relevant ones.
    """

    inputs: Tensor
    lengths: Tensor
    targets: Tensor
    sources: Tensor | None = None
    source_lengths: Tensor | None = None
    segments: Tensor | None = None
    follows: Tensor | None = None
    pixels: Tensor | None = None
    attended: Tensor | None = None
    documents: Documents | None = None

    @property
    def num_tokens(self) -> int:
        """Number of targets in the loss."""
        return int((self.targets != IGNORED).sum())


def pad_rows(rows: Sequence[list[int]], value: int = 0) -> Tensor:
    """Rows of ids as ``[batch, longest]``, right-padded with ``value``."""
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)


def _lengths(rows: Sequence[list[int]]) -> Tensor:
    return torch.tensor([len(row) for row in rows], dtype=torch.int32)


def make_batch(rows: Sequence[Row], *, is_filler: bool = False) -> TrainingBatch:
    """``rows`` as one batch. All targets of a filler are ignored."""
    inputs = [row.inputs for row in rows]
    sources = [row.sources for row in rows if row.sources is not None]
    segments = [row.segments for row in rows if row.segments is not None]
    pixels = [row.pixels for row in rows if row.pixels is not None]
    documents: dict[tuple[int, ...], int] = {}
    for row in rows:
        for document in row.documents:
            documents.setdefault(tuple(document), len(documents))
    texts = list(map(list, documents))
    labels = [[documents[tuple(row.documents[0])]] if documents else row.targets for row in rows]
    targets = pad_rows(labels, IGNORED)
    follows = torch.tensor([row.follows for row in rows])
    if is_filler:
        targets, follows = (torch.full_like(x, IGNORED) for x in (targets, follows))
    return TrainingBatch(
        inputs=pad_rows(inputs),
        lengths=_lengths(inputs),
        targets=targets,
        sources=pad_rows(sources) if sources else None,
        source_lengths=_lengths(sources) if sources else None,
        segments=pad_rows(segments) if segments else None,
        follows=follows,
        pixels=torch.from_numpy(np.stack(pixels)) if pixels else None,
        attended=torch.tensor([row.num_attended for row in rows], dtype=torch.int32)
        if all(row.num_attended is not None for row in rows)
        else None,
        documents=Documents(pad_rows(texts), _lengths(texts)) if texts else None,
    )


@dataclass(frozen=True)
class BatchOrder:
    """Assigns rows to the batches of each epoch: a pure function of seed and epoch.

    Rows of similar length share a batch, to reduce padding: rows are shuffled, sorted by length
    within pools of about 100 batches and cut into batches, which are shuffled.

    Attributes:
        lengths: length of each row, in tokens.
        batch_tokens: most tokens per batch, padding included.
    """

    lengths: Sequence[int]
    batch_tokens: int
    seed: int

    def epoch(self, number: int) -> list[list[int]]:
        """The batches of epoch ``number``, as indices of rows; each row occurs once."""
        rng = random.Random(f"{self.seed}:{number}")
        rows = list(range(len(self.lengths)))
        rng.shuffle(rows)
        mean = max(1, sum(self.lengths) // len(self.lengths))
        pool = max(1, 100 * self.batch_tokens // mean)
        batches: list[list[int]] = []
        for start in range(0, len(rows), pool):
            batches += self._cut(sorted(rows[start : start + pool], key=self.lengths.__getitem__))
        rng.shuffle(batches)
        return batches

    def _cut(self, rows: list[int]) -> list[list[int]]:
        """Cuts ``rows``, sorted by length, into batches of at most ``batch_tokens``."""
        batches: list[list[int]] = []
        current: list[int] = []
        for row in rows:
            if current and (len(current) + 1) * self.lengths[row] > self.batch_tokens:
                batches.append(current)
                current = []
            current.append(row)
        return [*batches, current] if current else batches


def share_of(rows: list[int], rank: int, num_processes: int) -> list[int]:
    """The rows of a batch that process ``rank`` computes; may be empty."""
    return rows[rank::num_processes]


def learning_rate_factor(step: int, warmup_steps: int) -> float:
    """Linear warm-up, then inverse square root decay, as a fraction of the peak.

    Vaswani et al. 2017, equation 3; ``step`` starts at 1.
    """
    return min(step / warmup_steps, math.sqrt(warmup_steps / step))
