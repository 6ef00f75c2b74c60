"""Recorded decode steps (CUDA graphs): steps of a few fixed sizes over fixed memory."""

from collections.abc import Sequence

import numpy as np

from model.bundle import GraphSpec
from server.constraint import Floats
from server.engine.cache.slot_tensors import Capacity, SlotTensors
from server.engine.gpu.buckets import Bucket, Buckets
from server.engine.gpu.sampler_inputs import LOGITS
from server.engine.requests.sequence import DecodingSequence
from server.runtime.contract import (
    CANDIDATES,
    SOURCE_ROWS,
    Array,
    BoundGraph,
    Graph,
    Layout,
    MakeMemory,
    Tensor,
)

# ONNX Runtime's CUDA provider allocates in the first two runs, and records the third.
_RUNS_TO_RECORD = 3


class PaddedDecode:
    """Decodes one token for each of the first slots, padded to a bucket with the slots after them.

    A device that records runs (CUDA graphs) replays each bucket.

    Args:
        spec: the manifest's ``decode`` graph.
        graph: the loaded ``decode`` graph.
        cache: the tensors of all slots.
        capacity: the capacity of ``cache``.
        buckets: the buckets of ``capacity``.
        memory: allocates tensors on the device that runs the graph.
        has_source: whether the model is an encoder-decoder.
    """

    def __init__(
        self,
        spec: GraphSpec,
        graph: Graph,
        cache: SlotTensors,
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
        # One for each bucket: a recording fixes the addresses of its input buffers.
        self._bound: dict[Bucket, BoundGraph] = {}

    def run(self, sequences: Sequence[DecodingSequence], padding: Sequence[int]) -> None:
        """Decodes the next token of each sequence, and a dummy token in each padding slot.

        Args:
            sequences: in slots ``0 … len(sequences)-1``.
            padding: for each slot after them, the position to write its token to.
        """
        ids = [sequence.tokens[sequence.num_cached_tokens] for sequence in sequences]
        cached = [*(sequence.num_cached_tokens for sequence in sequences), *padding]
        bucket = Bucket(len(cached), self._buckets.tokens_for(max(cached) + 1))
        sources = [sequence.num_source_tokens for sequence in sequences]
        self._run(bucket, ids, cached, sources)

    def logits(self, count: int) -> Tensor:
        """``[count, vocabulary]`` of the last run's first rows, in device memory."""
        return self._logits.rows(LOGITS, 0, count)

    def read_logits(self, count: int) -> Floats:
        """As :meth:`logits`, copied to host memory."""
        logits: Floats = self._logits.read(LOGITS, range(count))
        return logits

    def record(self) -> int:
        """Runs every bucket until it is recorded. All slots must be free.

        Returns:
            The number of recorded buckets; 0 if the device does not record.
        """
        num_recorded = 0
        for bucket in self._buckets:
            for _ in range(_RUNS_TO_RECORD):
                is_recorded = self._run(bucket, [], [0] * bucket.num_rows, [])
            num_recorded += is_recorded
        return num_recorded

    def _run(
        self, bucket: Bucket, ids: Sequence[int], cached: Sequence[int], sources: Sequence[int]
    ) -> bool:
        """Runs a bucket. Returns whether the run is recorded.

        Args:
            bucket: the size of the run.
            ids: the new token of each of the first rows; the rows after them are padding.
            cached: cached tokens of every row.
            sources: source tokens of each of the first rows.
        """
        count = bucket.num_rows
        inputs: dict[str, Array] = {
            "token_ids": np.zeros((count, 1), np.int64),
            "logit_positions": np.arange(count, dtype=np.int32),
            "num_cached_tokens": np.array(cached, np.int32),
            "num_new_tokens": np.ones(count, np.int32),
            "max_total_length": np.array(bucket.num_tokens, np.int32),
            CANDIDATES: np.zeros((0, 0), np.int32),
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
