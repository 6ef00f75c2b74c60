"""Decode runs of a few fixed sizes over fixed memory: what a device can record."""

from collections.abc import Sequence

import numpy as np

from model.bundle import GraphSpec
from server.engine.cache.slot_cache import Capacity, MakeMemory, SlotCache
from server.engine.gpu.buckets import Bucket, Buckets
from server.engine.gpu.sampler_graph import LOGITS
from server.engine.requests.sequence import DecodingSequence, Floats
from server.runtime.contract import SOURCE_ROWS, Array, Block, BoundGraph, Graph, Layout

# Two runs bring all memory that one needs, the third is recorded (ONNX Runtime's CUDA provider).
_RUNS_TO_RECORD = 3


class PaddedDecode:
    """One new token for each of the first slots, padded to a bucket with the slots behind them.

    Args:
        spec: the manifest's ``decode`` graph.
        graph: the same, loaded.
        cache: of all slots.
        capacity: of the cache.
        buckets: for as many slots, and as long.
        memory: makes tensors where the graph runs.
        has_source: it is an encoder-decoder's.
    """

    def __init__(
        self,
        spec: GraphSpec,
        graph: Graph,
        cache: SlotCache,
        capacity: Capacity,
        buckets: Buckets,
        memory: MakeMemory,
        *,
        has_source: bool,
    ) -> None:
        logits = spec.output(LOGITS)
        layout = Layout(
            capacity.num_slots,
            (int(logits.shape[-1]),),
            np.dtype(logits.dtype.value),
            has_tokens=False,
        )
        self._logits = memory({LOGITS: layout})
        self._graph = graph
        self._cache = cache
        self._capacity = capacity
        self._buckets = buckets
        self._has_source = has_source
        # What the host reads of a run is a bucket's own, so it is bound once as well.
        self._bound: dict[Bucket, BoundGraph] = {}

    def run(self, rows: Sequence[DecodingSequence], padding: Sequence[int]) -> None:
        """Reads the next token of each row; in the slots behind, one that means nothing.

        Args:
            rows: in slots ``0 … len(rows)-1``.
            padding: where that token is written, in each slot behind.
        """
        ids = [row.tokens[row.num_cached_tokens] for row in rows]
        cached = [*(row.num_cached_tokens for row in rows), *padding]
        bucket = Bucket(len(cached), self._buckets.tokens_for(max(cached) + 1))
        sources = [row.num_source_tokens for row in rows]
        self._run(bucket, ids, cached, sources)

    def logits(self, count: int) -> Block:
        """Of the first rows of the last run, ``[count, vocabulary]``, where they are."""
        return self._logits.rows(LOGITS, 0, count)

    def logits_read(self, count: int) -> Floats:
        """As :meth:`logits`, on the host."""
        logits: Floats = self._logits.read(LOGITS, range(count))
        return logits

    def record(self) -> int:
        """Runs every bucket often enough. All slots are free. Returns how many are recorded."""
        num_recorded = 0
        for bucket in self._buckets:
            for _ in range(_RUNS_TO_RECORD):
                is_recorded = self._run(bucket, [], [0] * bucket.num_rows, [])
            num_recorded += is_recorded
        return num_recorded

    def _run(
        self, bucket: Bucket, ids: Sequence[int], cached: Sequence[int], sources: Sequence[int]
    ) -> bool:
        """``ids`` and ``sources``, the lengths, are of the first rows; the others are padding."""
        count = bucket.num_rows
        inputs: dict[str, Array] = {
            "token_ids": np.zeros((count, 1), np.int64),
            "logit_positions": np.arange(count, dtype=np.int32),
            "num_cached_tokens": np.array(cached, np.int32),
            "num_new_tokens": np.ones(count, np.int32),
            "max_total_length": np.array(bucket.num_tokens, np.int32),
        }
        inputs["token_ids"][: len(ids), 0] = ids
        if self._has_source:
            inputs["source_lengths"] = np.ones(count, np.int32)
            inputs["source_lengths"][: len(sources)] = sources
            inputs["max_source_length"] = np.array(self._capacity.max_source_length, np.int32)
            inputs[SOURCE_ROWS] = np.arange(count, dtype=np.int32)
        if bucket not in self._bound:
            self._bound[bucket] = self._graph.bind(self._cache.rows(0, count))
        logits = self._logits.rows(LOGITS, 0, count)
        return self._bound[bucket].run_into(inputs, {LOGITS: logits}, repeats=True)
