"""Turns rows of sequences into graph inputs, and runs them over the cache."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from model.bundle import AttentionKind, GraphSpec
from server.engine.cache.slot_cache import Capacity, MakeMemory, SlotCache
from server.engine.decoding.logits import DeviceLogits, HostLogits, Logits
from server.engine.decoding.options import AttentionSelection
from server.engine.gpu.buckets import Buckets
from server.engine.gpu.padded_decode import PaddedDecode
from server.engine.gpu.sampler_graph import NEVER
from server.engine.requests.sequence import DecodingSequence, Floats
from server.runtime.contract import SOURCE_ROWS, Array, BoundGraph, Graph
from server.runtime.host_memory import HostMemory

# Tokens whose logits over the whole vocabulary are held at once.
SCORED_CHUNK = 64


class _Read(NamedTuple):
    """The ``size`` tokens of ``row`` from index ``start`` on, which is what it has cached."""

    row: DecodingSequence
    start: int
    size: int


class ModelRunner:
    """One model's graphs over one lane's slots.

    Args:
        spec: the manifest's ``decode`` graph.
        decode: the same, loaded.
        encode: the encoder of an encoder-decoder.
        attend: as ``decode``, but also tells attention.
        capacity: of the cache.
        suppressed: tokens that are never generated.
        memory: makes the tensors of the slots, where the graphs run.
        buckets: sizes that :meth:`decode_padded` pads to; None if it is not called.
        take: logits stay where they are, and this copies what is wanted of them.
    """

    def __init__(
        self,
        spec: GraphSpec,
        decode: Graph,
        encode: Graph | None,
        capacity: Capacity,
        suppressed: tuple[int, ...] = (),
        attend: Graph | None = None,
        memory: MakeMemory = HostMemory,
        buckets: Buckets | None = None,
        take: BoundGraph | None = None,
    ) -> None:
        self.buckets = buckets
        self._padded: PaddedDecode | None = None
        self.cache = SlotCache(
            spec.states, capacity.num_slots, capacity.max_length, capacity.max_source_length, memory
        )
        self._max_chunk = spec.max_chunk
        self._within_source = spec.chunk_within_source
        self._suppressed = np.array(suppressed, np.intp)
        self._decode = decode
        self._attend = attend
        self._encode = None if encode is None else encode.bind({})
        self._bound: dict[tuple[int, int], BoundGraph] = {}
        if buckets is not None:
            has_source = encode is not None
            self._padded = PaddedDecode(
                spec, decode, self.cache, capacity, buckets, memory, has_source=has_source
            )
        self._take = take

    def encode(self, rows: Sequence[DecodingSequence], slots: Sequence[int]) -> None:
        """Runs the encoder over the sources and stores its memory in ``slots``."""
        if self._encode is None:
            raise ValueError("a decoder has nothing to encode")
        ids, lengths = pad([row.job.source for row in rows])
        memory = self._encode.run_kept({"token_ids": ids, "lengths": lengths})
        self.cache.write_cross(slots, memory, lengths.tolist())

    def decode(
        self, rows: Sequence[DecodingSequence], first_slot: int, sizes: Sequence[int]
    ) -> Logits:
        """Reads the next ``sizes[i]`` tokens of each row into its slot.

        Args:
            rows: in neighbouring slots.
            first_slot: the slot of ``rows[0]``.
            sizes: new tokens per row.

        Returns:
            Logits ``[rows, vocabulary]`` after each row's last new token; valid until
            the next run. If it raises, it may run again: the rows are what they were.
        """
        self.cache.save(first_slot, len(rows))
        try:
            return self._read(rows, first_slot, sizes)
        except Exception:
            # Tokens are written again where they were; a recurrent state has to be put back.
            self.cache.restore(first_slot, len(rows))
            raise

    def decode_padded(self, rows: Sequence[DecodingSequence], padding: Sequence[int]) -> Logits:
        """As :meth:`decode`, of one token of each row from slot 0 on, in a run of a fixed size.

        Args:
            rows: in slots ``0 … len(rows)-1``.
            padding: for each slot behind them, where a token that means nothing may be written.
                They are ``buckets.rows_for(len(rows)) - len(rows)``.
        """
        if self._padded is None:
            raise ValueError("there are no buckets")
        count = len(rows) + len(padding)
        self.cache.save(0, count)
        try:
            self._padded.run(rows, padding)
        except Exception:
            self.cache.restore(0, count)
            raise
        # What is padding here may be in the middle of its prompt.
        self.cache.restore(len(rows), len(padding))
        if self._take is not None:
            return DeviceLogits(self._padded.logits(len(rows)), self._take)
        return self._without_suppressed(self._padded.logits_read(len(rows)))

    def record(self) -> int:
        """Runs each bucket until it is recorded, where nothing runs yet. Returns how many are."""
        return 0 if self._padded is None else self._padded.record()

    def _read(
        self, rows: Sequence[DecodingSequence], first_slot: int, sizes: Sequence[int]
    ) -> Logits:
        together = 1 if self._within_source else self._max_chunk
        if together is None or max(sizes) <= together:
            reads = [
                _Read(row, row.num_cached_tokens, size)
                for row, size in zip(rows, sizes, strict=True)
            ]
            return self._run(reads, first_slot)
        last = []
        for slot, (row, size) in enumerate(zip(rows, sizes, strict=True), first_slot):
            for read in _pieces(row, size, self._longest(row, size)):
                logits = self._run([read], slot)
            if len(rows) == 1:
                return logits
            last.append(logits.rows([0]).copy())  # the next run overwrites them
        return HostLogits(np.concatenate(last))

    def decode_all(self, row: DecodingSequence, slot: int, size: int) -> Iterator[Floats]:
        """Reads the next ``size`` tokens of a row.

        Yields:
            Logits ``[n, vocabulary]`` after each of the next ``n`` new tokens; valid until
            the next.
        """
        for read in _pieces(row, size, min(self._longest(row, size), SCORED_CHUNK)):
            logits = self._run([read], slot, all_positions=True)
            yield logits.rows(range(read.size))

    def decode_attention(
        self, row: DecodingSequence, slot: int, size: int, wanted: AttentionSelection
    ) -> Iterator[Floats]:
        """Reads the next ``size`` tokens of a row.

        Yields:
            What each from the first wanted on attended to: ``[layers, heads, source]``, or
            ``[1, 1, source]`` for the mean. The source of self-attention is the whole prompt;
            what comes after a token has no weight.
        """
        if self._attend is None:
            raise ValueError("this model has no graph that tells attention")
        bound = self._attend.bind(self.cache.rows(slot, 1), {wanted.kind})
        is_cross = wanted.kind == AttentionKind.CROSS
        width = row.num_source_tokens if is_cross else len(row.job.prompt)
        for read in _pieces(row, size, min(self._longest(row, size), SCORED_CHUNK)):
            told = bound.run(self._inputs([read]))[wanted.kind][0]  # [layers, heads, n, capacity]
            chosen = told[np.ix_(wanted.layers, wanted.heads)]
            if wanted.average:
                chosen = chosen.mean((0, 1), keepdims=True)
            for index in range(max(wanted.from_token - read.start, 0), read.size):
                weights = np.zeros((*chosen.shape[:2], width), np.float32)
                num_seen = width if is_cross else read.start + index + 1
                weights[..., :num_seen] = chosen[:, :, index, :num_seen]
                yield weights

    def _longest(self, row: DecodingSequence, size: int) -> int:
        """How many of ``size`` new tokens of ``row`` one run may hold."""
        limit = self._max_chunk or size
        return min(limit, row.num_source_tokens) if self._within_source else limit

    def _run(
        self, reads: Sequence[_Read], first_slot: int, *, all_positions: bool = False
    ) -> Logits:
        """One run: logits after each row's last new token, or after every one of one row."""
        key = (first_slot, len(reads))
        if key not in self._bound:
            self._bound[key] = self._decode.bind(self.cache.rows(*key))
        inputs = self._inputs(reads, all_positions=all_positions)
        if self._take is not None:
            return DeviceLogits(self._bound[key].run_kept(inputs)["logits"], self._take)
        return self._without_suppressed(self._bound[key].run(inputs)["logits"])

    def _without_suppressed(self, logits: Floats) -> HostLogits:
        if self._suppressed.size:
            logits[:, self._suppressed] = NEVER
        return HostLogits(logits)

    def _inputs(self, reads: Sequence[_Read], *, all_positions: bool = False) -> dict[str, Array]:
        ids, num_new = pad([read.row.tokens[read.start : read.start + read.size] for read in reads])
        num_cached = np.array([read.start for read in reads], np.int32)
        positions = np.arange(len(reads), dtype=np.int32) * ids.shape[1] + num_new - 1
        if all_positions:
            positions = np.arange(ids.shape[1], dtype=np.int32)
        inputs: dict[str, Array] = {
            "token_ids": ids,
            "logit_positions": positions,
            "num_cached_tokens": num_cached,
            "num_new_tokens": num_new,
            "max_total_length": np.array((num_cached + num_new).max(), np.int32),
        }
        if self._encode is not None:
            lengths = np.array([read.row.num_source_tokens for read in reads], np.int32)
            inputs["source_lengths"] = lengths
            inputs["max_source_length"] = np.array(lengths.max(), np.int32)
            inputs[SOURCE_ROWS] = _source_rows(reads)
        return inputs


def _pieces(row: DecodingSequence, size: int, longest: int) -> Iterator[_Read]:
    stop = row.num_cached_tokens + size
    for start in range(row.num_cached_tokens, stop, longest):
        yield _Read(row, start, min(longest, stop - start))


def _source_rows(reads: Sequence[_Read]) -> Array:
    """For each, the first that has its source."""
    first: dict[int, int] = {}
    rows = [first.setdefault(id(read.row.job), index) for index, read in enumerate(reads)]
    return np.array(rows, np.int32)


def pad(rows: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Right-pads with id 0.

    Returns:
        ``[rows, longest]`` int64 and the lengths ``[rows]`` int32.
    """
    lengths = np.array([len(row) for row in rows], np.int32)
    ids = np.zeros((len(rows), int(lengths.max())), np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
    return ids, lengths
