"""Builds the inputs of the decoder's runs from sequences."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from model.adapters import ADAPTERS
from model.bundle import NUM_SAMPLES, PIXELS, SAMPLES
from server.engine.prompt_images import ImageInputs
from server.engine.requests.job import GenerationJob, Job
from server.engine.requests.sequence import DecodingSequence
from server.runtime.contract import SOURCE_ROWS
from server.runtime.memory import Array, Tensor

Inputs = dict[str, Array | Tensor]

# The most tokens of a run with logits after every token. It bounds the memory of the outputs.
_MAX_SCORED = 64


class Chunk(NamedTuple):
    """``size`` tokens of ``sequence`` from index ``start``. The tokens before it are cached."""

    sequence: DecodingSequence
    start: int
    size: int


def next_chunk(sequence: DecodingSequence, size: int) -> Chunk:
    """Returns the next ``size`` tokens of a sequence."""
    return Chunk(sequence, sequence.num_cached_tokens, size)


def split(sequence: DecodingSequence, size: int, max_size: int) -> Iterator[Chunk]:
    """Yields the next ``size`` tokens of a sequence, in chunks of at most ``max_size``."""
    stop = sequence.num_cached_tokens + size
    for start in range(sequence.num_cached_tokens, stop, max_size):
        yield Chunk(sequence, start, min(max_size, stop - start))


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """How many new tokens of a sequence one run may process.

    ``max_chunk``: the most tokens; None for no limit. ``within_source``: whether the limit is also
    the sequence's number of source tokens. Sequences then share only runs over one token of each.
    """

    max_chunk: int | None
    within_source: bool

    def max_together(self, size: int) -> int:
        """Returns how many of ``size`` tokens fit a run that other sequences may share."""
        return 1 if self.within_source else self.max_chunk or size

    def max_size(self, sequence: DecodingSequence, size: int) -> int:
        """Returns how many of ``size`` tokens fit a run of this sequence alone."""
        limit = self.max_chunk or size
        return min(limit, sequence.num_source_tokens) if self.within_source else limit

    def split_scored(self, sequence: DecodingSequence, size: int) -> Iterator[Chunk]:
        """Yields the next ``size`` tokens, in chunks for runs with logits after every token."""
        return split(sequence, size, min(self.max_size(sequence, size), _MAX_SCORED))


class _DecodeInputs:
    """The inputs of decode steps over ``num_rows`` sequences: arrays that each step updates.

    ``has_source``, ``has_adapters`` and ``images``: see :class:`RunInputs`.
    """

    def __init__(
        self,
        num_rows: int,
        *,
        has_source: bool,
        has_adapters: bool,
        images: ImageInputs | None,
    ) -> None:
        self._has_source = has_source
        self._sequence_ids: list[int] = []  # the sequences whose sources are in the arrays
        self._ids = np.empty((num_rows, 1), np.int64)
        self._num_cached = np.empty(num_rows, np.int32)
        self._max_total = np.empty((), np.int32)
        self._sources: dict[str, Array] = {}
        self._inputs: Inputs = {
            "token_ids": self._ids,
            "num_cached_tokens": self._num_cached,
            "max_total_length": self._max_total,
            "logit_positions": np.arange(num_rows, dtype=np.int32),
            "num_new_tokens": np.ones(num_rows, np.int32),
            **({} if images is None else images.none),
        }
        self._adapters: Array | None = None
        if has_adapters:
            self._adapters = self._inputs[ADAPTERS] = np.zeros(num_rows, np.int32)

    def update(self, chunks: Sequence[Chunk]) -> Inputs:
        """Returns the inputs for the next token of each sequence, valid until the next call."""
        if self._has_source:
            self._update_sources([chunk.sequence for chunk in chunks])
        if self._adapters is not None:
            self._adapters[:] = [chunk.sequence.job.adapter for chunk in chunks]
        starts = [chunk.start for chunk in chunks]
        self._ids[:, 0] = [chunk.sequence.tokens[chunk.start] for chunk in chunks]
        self._num_cached[:] = starts
        self._max_total[...] = max(starts) + 1
        return {**self._inputs, **self._sources}

    def advance(self, tokens: Sequence[int]) -> None:
        """Changes the inputs to those of the next step. ``tokens``: one for each sequence."""
        self._ids[:, 0] = tokens
        self._num_cached += 1
        self._max_total += 1

    def _update_sources(self, sequences: Sequence[DecodingSequence]) -> None:
        ids = [sequence.id for sequence in sequences]
        if ids == self._sequence_ids:
            return
        for name, array in _sources(sequences).items():
            self._sources.setdefault(name, array)[...] = array
        self._sequence_ids = ids


class RunInputs:
    """Builds the inputs of runs. Decode steps over the same number of sequences share arrays.

    ``has_source``: whether the model is an encoder-decoder. ``has_adapters``: whether its graphs
    take the adapter of each row. ``images``: the inputs of a decoder that reads images; None for
    others.
    """

    def __init__(
        self,
        *,
        has_source: bool,
        has_adapters: bool = False,
        images: ImageInputs | None = None,
    ) -> None:
        self._has_source, self._has_adapters, self._images = has_source, has_adapters, images
        self._of_steps: dict[int, _DecodeInputs] = {}  # by number of sequences

    def of(self, chunks: Sequence[Chunk], *, all_positions: bool = False) -> Inputs:
        """Returns the inputs of a run, except its states, valid until the next method call.

        ``all_positions``: asks for logits after each token; only for a run over one chunk.
        """
        if not (all_positions or any(chunk.size > 1 or _has_images(chunk) for chunk in chunks)):
            return self._of_step(len(chunks)).update(chunks)
        ids, num_new = pad(
            [sequence.tokens[start : start + size] for sequence, start, size in chunks]
        )
        starts = [chunk.start for chunk in chunks]
        num_cached = np.array(starts, np.int32)
        if all_positions:
            positions = np.arange(ids.shape[1], dtype=np.int32)
        else:
            positions = np.arange(len(chunks), dtype=np.int32) * ids.shape[1] + num_new - 1
        images: dict[str, Array] = {}
        if self._images is not None:
            sequences = [chunk.sequence for chunk in chunks]
            images = self._images.of(sequences, starts, [chunk.size for chunk in chunks])
        inputs: Inputs = {
            "token_ids": ids,
            "logit_positions": positions,
            "num_cached_tokens": num_cached,
            "num_new_tokens": num_new,
            "max_total_length": np.array((num_cached + num_new).max(), np.int32),
            **(_sources([chunk.sequence for chunk in chunks]) if self._has_source else {}),
            **images,
        }
        if self._has_adapters:
            inputs[ADAPTERS] = adapters_of([chunk.sequence.job for chunk in chunks])
        return inputs

    def advance(self, tokens: Sequence[int]) -> None:
        """Changes the inputs of the latest decode step to those of the next step.

        ``tokens``: the next token of each sequence.
        """
        self._of_step(len(tokens)).advance(tokens)

    def _of_step(self, num_rows: int) -> _DecodeInputs:
        found = self._of_steps.get(num_rows)
        if found is None:
            found = self._of_steps[num_rows] = _DecodeInputs(
                num_rows,
                has_source=self._has_source,
                has_adapters=self._has_adapters,
                images=self._images,
            )
        return found


def _has_images(chunk: Chunk) -> bool:
    """Whether a chunk may have tokens of images: its prompt is not prefilled yet."""
    return bool(chunk.sequence.image_vectors)


def _sources(sequences: Sequence[DecodingSequence]) -> dict[str, Array]:
    """Returns the inputs that describe the sources of a run's rows."""
    lengths = np.array([sequence.num_source_tokens for sequence in sequences], np.int32)
    first: dict[int, int] = {}  # by job: its first row. All sequences of a job share its source.
    rows = [first.setdefault(id(sequence.job), row) for row, sequence in enumerate(sequences)]
    return {
        "source_lengths": lengths,
        "max_source_length": np.array(lengths.max(), np.int32),
        SOURCE_ROWS: np.array(rows, np.int32),
    }


def adapters_of(jobs: Sequence[Job]) -> Array:
    """Returns the input with the adapter of each row, int32 ``[rows]``."""
    return np.array([job.adapter for job in jobs], np.int32)


def encoder_inputs(
    jobs: Sequence[GenerationJob], *, has_adapters: bool = False
) -> dict[str, Array]:
    """Builds the inputs of an encoder-decoder's encoder for the sources of ``jobs``.

    ``has_adapters``: see :class:`RunInputs`.
    """
    adapters = {ADAPTERS: adapters_of(jobs)} if has_adapters else {}
    samples = [job.samples for job in jobs if job.samples is not None]
    if samples:
        return {SAMPLES: np.stack(samples), **adapters}
    images = [job.image for job in jobs if job.image is not None]
    if images:
        return {PIXELS: np.stack(images), **adapters}
    ids, lengths = pad([job.source for job in jobs])
    return {"token_ids": ids, "lengths": lengths, **adapters}


def pad(rows: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Right-pads token ids with 0.

    Returns:
        The padded ids ``[rows, longest]`` int64, and the lengths ``[rows]`` int32.
    """
    lengths = np.array([len(row) for row in rows], np.int32)
    ids = np.zeros((len(rows), int(lengths.max())), np.int64)
    memory, row_bytes = ids.data, ids.strides[0]
    for index, row in enumerate(rows):
        # This takes half the time of NumPy's conversion.
        struct.pack_into(f"{len(row)}q", memory, index * row_bytes, *row)
    return ids, lengths


def pad_samples(windows: Sequence[Array], size: int | None = None) -> dict[str, Array]:
    """The inputs of an encoder of recordings: windows ``[samples]``, right-padded with silence.

    ``size``: samples of each window in the graph; None: as many as the longest one has.
    """
    lengths = np.array([len(samples) for samples in windows], np.int32)
    samples = np.zeros((len(windows), size or int(lengths.max())), np.int16)
    for row, window in zip(samples, windows, strict=True):
        row[: len(window)] = window
    return {SAMPLES: samples, NUM_SAMPLES: lengths}
