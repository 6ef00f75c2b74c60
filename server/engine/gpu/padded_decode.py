"""Recorded decode steps (CUDA graphs): steps of a few fixed sizes over fixed memory.

The device need not wait while the host applies a step (asynchronous scheduling): the next one, over
the tokens that the device found, starts before. If another step is asked for instead, its results
are dropped. It wrote only keys and values behind those of each sequence, which the next run
overwrites.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from model.bundle import GraphSpec
from server.constraint import Floats
from server.engine.cache.slot_tensors import Capacity, SlotTensors
from server.engine.gpu.buckets import Bucket, Buckets
from server.engine.gpu.sampler_inputs import LOGITS
from server.engine.requests.sequence import DecodingSequence
from server.runtime.contract import (
    BEST_TOKENS,
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


class _Step(NamedTuple):
    """One token of each sequence.

    ``ids``: the tokens. ``cached``: cached tokens of each row, padding included. ``sources``:
    source tokens of each sequence.
    """

    ids: list[int]
    cached: list[int]
    sources: list[int]

    def next(self, best: list[int]) -> "_Step":
        """The step over the best tokens of this one."""
        count = len(self.ids)
        after = [number + 1 for number in self.cached[:count]] + self.cached[count:]
        return _Step(best[:count], after, self.sources)


class _Bound(NamedTuple):
    """The graph of a bucket, its inputs, which each run updates, and where its outputs go."""

    graph: BoundGraph
    inputs: dict[str, Array]
    results: dict[str, Tensor]


Continues = Callable[[list[int]], bool]
"""Whether the likeliest next step is over these best tokens, one for each row."""


@dataclass(slots=True, eq=False)
class _Started:
    """A step that runs. ``continues``: to ask once it is done; None: not yet known, or asked."""

    step: _Step
    continues: Continues | None
    future: "Future[list[int]] | None" = None

    def result(self) -> list[int]:
        """Waits for the best tokens. Raises what the run raised."""
        assert self.future is not None
        return self.future.result()

    def has_failed(self) -> bool:
        """Waits until the step is done."""
        assert self.future is not None
        return self.future.exception() is not None


def _stops(best: list[int]) -> bool:
    """Starts no step."""
    del best
    return False


class PaddedDecode:
    """Decodes one token for each of the first slots, padded to a bucket with the slots after them.

    A device that records runs (CUDA graphs) replays each bucket. All runs are on a thread of their
    own, to which recordings belong.

    Args:
        spec: the manifest's ``decode`` graph.
        graph: the loaded ``decode`` graph.
        cache: the tensors of all slots.
        capacity: the capacity of ``cache``.
        buckets: the buckets of ``capacity``.
        memory: allocates tensors on the device that runs the graph.
        has_source: whether the model is an encoder-decoder.

    Attributes:
        finds_best: whether the graph finds the likeliest tokens.
        best_tokens: :data:`BEST_TOKENS` for each row of the last run; None if it does not.
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
        layouts = {LOGITS: layout}
        self.finds_best = BEST_TOKENS in graph.outputs
        if self.finds_best:
            layouts[BEST_TOKENS] = Layout(
                capacity.num_slots, (), np.dtype(np.int64), has_tokens=False
            )
        self.best_tokens: list[int] | None = None
        self._results = memory(layouts)
        self._result_names = tuple(layouts)
        self._thread = ThreadPoolExecutor(1, "decode-runs")
        self._lock = threading.RLock()
        self._started: _Started | None = None  # the next step, if it was started
        self._graph = graph
        self._cache = cache
        self._capacity = capacity
        self._buckets = buckets
        self._has_source = has_source
        # One for each bucket: a recording fixes the addresses of its input buffers.
        self._bound: dict[Bucket, _Bound] = {}

    def run(
        self,
        sequences: Sequence[DecodingSequence],
        padding: Sequence[int],
        continues: Continues = _stops,
    ) -> None:
        """Decodes the next token of each sequence, and a dummy token in each padding slot.

        Args:
            sequences: in slots ``0 … len(sequences)-1``.
            padding: for each slot after them, the position to write its token to.
            continues: whether to start the next step. Any thread may call it while this one waits.
        """
        ids = [sequence.tokens[sequence.num_cached_tokens] for sequence in sequences]
        cached = [*(sequence.num_cached_tokens for sequence in sequences), *padding]
        step = _Step(ids, cached, [sequence.num_source_tokens for sequence in sequences])
        with self._lock:
            started, self._started = self._started, None
            if started is not None and started.step == step:
                started.continues = continues
        # A step that failed, or is another, is waited for and dropped.
        if started is None or started.has_failed() or started.step != step:
            started = self._submit(step, continues)
        best = started.result()
        self._decide(started, best)  # if it was done before it was asked for
        self.best_tokens = best if self.finds_best else None

    def wait(self) -> None:
        """Waits for a step that was started, and drops it."""
        with self._lock:
            started, self._started = self._started, None
        if started is not None:
            started.has_failed()

    def _submit(self, step: _Step, continues: Continues | None) -> _Started:
        started = _Started(step, continues)
        started.future = self._thread.submit(self._run_started, started)
        return started

    def _run_started(self, started: _Started) -> list[int]:
        best = self._run_step(started.step)
        self._decide(started, best)
        return best

    def _decide(self, started: _Started, best: list[int]) -> None:
        """Starts the step after this one, if it is known and likely. Either thread calls it."""
        with self._lock:
            continues, started.continues = started.continues, None
            if self.finds_best and continues is not None and continues(best):
                self._started = self._submit(started.step.next(best), None)

    def logits(self, count: int) -> Tensor:
        """``[count, vocabulary]`` of the last run's first rows, in device memory."""
        return self._results.rows(LOGITS, 0, count)

    def read_logits(self, count: int) -> Floats:
        """As :meth:`logits`, copied to host memory."""
        logits: Floats = self._results.read(LOGITS, range(count))
        return logits

    def record(self) -> int:
        """Runs every bucket until it is recorded. All slots must be free.

        Returns:
            The number of recorded buckets; 0 if the device does not record.
        """
        return self._thread.submit(self._record).result()

    def _record(self) -> int:
        num_recorded = 0
        for bucket in self._buckets:
            for _ in range(_RUNS_TO_RECORD):
                is_recorded = self._run(bucket, [], [0] * bucket.num_rows, [])
            num_recorded += is_recorded
        return num_recorded

    def _run_step(self, step: _Step) -> list[int]:
        """Runs a step. Returns the best token of each row, if the device finds them."""
        longest = max(step.cached) + 1
        bucket = Bucket(len(step.cached), self._buckets.tokens_for(longest))
        self._run(bucket, step.ids, step.cached, step.sources)
        if not self.finds_best:
            return []
        tokens: list[int] = self._results.read_all(BEST_TOKENS)[: bucket.num_rows].tolist()
        return tokens

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
        bound = self._bound.get(bucket)
        if bound is None:
            bound = self._bound[bucket] = self._bind(bucket)
        inputs = bound.inputs
        inputs["token_ids"][: len(ids), 0] = ids
        inputs["token_ids"][len(ids) :] = 0
        inputs["num_cached_tokens"][:] = cached
        if self._has_source:
            inputs["source_lengths"][:] = 1
            inputs["source_lengths"][: len(sources)] = sources
        return bound.graph.run_into(inputs, bound.results, repeats=True)

    def _bind(self, bucket: Bucket) -> _Bound:
        count = bucket.num_rows
        graph = self._graph.bind(self._cache.rows(0, count))
        results = {name: self._results.rows(name, 0, count) for name in self._result_names}
        return _Bound(graph, self._make_inputs(bucket), results)

    def _make_inputs(self, bucket: Bucket) -> dict[str, Array]:
        """The inputs of a bucket's runs; each run sets those that differ from run to run."""
        count = bucket.num_rows
        inputs: dict[str, Array] = {
            "token_ids": np.zeros((count, 1), np.int64),
            "logit_positions": np.arange(count, dtype=np.int32),
            "num_cached_tokens": np.zeros(count, np.int32),
            "num_new_tokens": np.ones(count, np.int32),
            "max_total_length": np.array(bucket.num_tokens, np.int32),
            CANDIDATES: np.zeros((0, 0), np.int32),
        }
        if self._has_source:
            inputs["source_lengths"] = np.ones(count, np.int32)
            inputs["max_source_length"] = np.array(self._capacity.max_source_length, np.int32)
            inputs[SOURCE_ROWS] = np.arange(count, dtype=np.int32)
        return inputs
