"""Recorded decode steps (CUDA graphs): steps of a few fixed sizes over fixed memory.

The device does not wait while the host applies a step (asynchronous scheduling): the next step,
over the best tokens that the device found, starts before. If the device makes the inputs, a step of
few rows starts even before the host has read those tokens. If the scheduler then asks for another
step, the results are dropped. The dropped step wrote only keys and values after those of each
sequence, which the next run overwrites.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from model.bundle import GraphSpec
from server.constraint import Floats
from server.engine.cache.slot_tensors import Capacity, SlotTensors
from server.engine.gpu.ahead import NOT_AHEAD, Ahead
from server.engine.gpu.buckets import Bucket, Buckets
from server.engine.gpu.compared_logits import check_logits
from server.engine.gpu.sampler_inputs import LOGITS
from server.engine.requests.sequence import DecodingSequence
from server.runtime.contract import (
    BEST_TOKENS,
    CANDIDATES,
    FEW_ROWS,
    IS_LIVE,
    SOURCE_ROWS,
    Graph,
    Pending,
    RepeatedRun,
    StepGraphs,
)
from server.runtime.memory import Array, Layout, MakeMemory, Tensor

# At how many first positions two graphs are compared; more would take too long.
_NUM_COMPARED = 4


class _Step(NamedTuple):
    """The inputs of a step over one token of each sequence.

    ``ids``: the token of each sequence. ``cached``: the number of cached tokens of each row,
    padding included. ``sources``: the number of source tokens of each sequence.
    """

    ids: list[int]
    cached: list[int]
    sources: list[int]

    def next(self, best: list[int]) -> "_Step":
        """Returns the step over the best tokens of this one."""
        count = len(self.ids)
        after = [number + 1 for number in self.cached[:count]] + self.cached[count:]
        return _Step(best[:count], after, self.sources)

    @property
    def length(self) -> int:
        """The number of tokens of the longest row, the new token included."""
        return max(self.cached) + 1


class _Bound(NamedTuple):
    """The run of a bucket, and its inputs, which each step sets."""

    bucket: Bucket
    run: RepeatedRun
    inputs: dict[str, Array]


@dataclass(slots=True, eq=False)
class _Started:
    """A step that the device runs. ``step``: None until the tokens before it are known."""

    bound: _Bound
    pending: Pending
    step: _Step | None


class PaddedDecode:
    """Decodes one token for each of the first slots, padded to a bucket with the slots after them.

    A device that records runs (CUDA graphs) replays each bucket. For one thread.

    Args:
        spec: the manifest's ``decode`` graph.
        graph: the loaded ``decode`` graph.
        steps: the graphs that run decode steps; None uses ``graph``.
        cache: the tensors of all slots.
        capacity: the capacity of ``cache``.
        buckets: the buckets of ``capacity``.
        memory: allocates tensors on the device that runs the graph.
        has_source: whether the model is an encoder-decoder.

    Attributes:
        finds_best: whether the graph finds the likeliest tokens.
        best_tokens: :data:`BEST_TOKENS` for each row of the last run; None without ``finds_best``.
    """

    _started: _Started | None = None  # the next step, if it was started

    def __init__(
        self,
        spec: GraphSpec,
        graph: Graph,
        cache: SlotTensors,
        capacity: Capacity,
        buckets: Buckets,
        memory: MakeMemory,
        steps: StepGraphs | None = None,
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
        self._steps = steps or StepGraphs(graph, graph)
        self.finds_best = BEST_TOKENS in self._steps.many.outputs
        if self.finds_best:
            layouts[BEST_TOKENS] = Layout(
                capacity.num_slots, (), np.dtype(np.int64), has_tokens=False
            )
        self.best_tokens: list[int] | None = None
        self._results = memory(layouts)
        self._result_names = tuple(layouts)
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
        ahead: Ahead = NOT_AHEAD,
    ) -> None:
        """Decodes the next token of each sequence, and a dummy token in each padding slot.

        Args:
            sequences: the sequences in slots ``0 … len(sequences)-1``.
            padding: for each slot after them, the position to write its token to.
            ahead: decides whether to start the next step before it is asked for.
        """
        ids = [sequence.tokens[sequence.num_cached_tokens] for sequence in sequences]
        cached = [*(sequence.num_cached_tokens for sequence in sequences), *padding]
        step = _Step(ids, cached, [sequence.num_source_tokens for sequence in sequences])
        started, self._started = self._started, None
        if started is not None and started.step == step:
            with suppress(Exception):  # a failed step runs again, below
                self._finish(started, step, ahead)
                return
        elif started is not None:
            started.pending.drop()
        self._finish(self._start(step), step, ahead)

    def wait(self) -> None:
        """Waits until a step that was started early ends, and drops its results."""
        started, self._started = self._started, None
        if started is not None:
            started.pending.drop()

    def __del__(self) -> None:
        """Waits for the device, which must not write to memory after its release."""
        self.wait()

    def _finish(self, started: _Started, step: _Step, ahead: Ahead) -> None:
        """Waits for a step. Starts the step after it, before or after the wait, if it is likely.

        Raises:
            Exception: the step failed. Then the step after it is not started, or is dropped.
        """
        is_possible = self.finds_best and ahead.is_possible()
        bound, after = started.bound, None
        chains = is_possible and bound.run.feeds_back and step.length < bound.bucket.num_tokens
        try:
            if chains and bound.bucket.num_rows <= FEW_ROWS:
                after = _Started(bound, bound.run.start(None), None)
            tokens = started.pending.wait()
        except Exception:
            for unfinished in (started, after):
                if unfinished is not None:
                    unfinished.pending.drop()
            raise
        best = [] if tokens is None else tokens.tolist()
        # From here on the device is idle, unless the next step was already started.
        if after is None and is_possible and ahead.is_likely(best):
            if chains:
                after = _Started(bound, bound.run.start(None), None)
            else:
                after = self._start(step.next(best))
        if after is not None:
            after.step = after.step or step.next(best)
        self._started = after
        self.best_tokens = best if self.finds_best else None

    def logits(self, count: int) -> Tensor:
        """Returns the last run's first logits ``[count, vocabulary]``, in device memory."""
        return self._results.rows(LOGITS, 0, count)

    def read_logits(self, count: int) -> Floats:
        """Returns :meth:`logits` copied to host memory."""
        logits: Floats = self._results.read(LOGITS, range(count))
        return logits

    def record(self) -> int:
        """Runs every bucket until it is recorded. All slots must be free.

        Returns:
            The number of recorded buckets; 0 if the device does not record.

        Raises:
            RuntimeError: the probabilities of a step graph differ from the ``decode`` graph's.
        """
        num_recorded = sum(self._record(bucket) for bucket in self._buckets)
        rows = self._buckets.rows
        for count in {*[count for count in rows if count <= FEW_ROWS][-1:], rows[-1]}:
            if self._steps.for_rows(count) is not self._graph:
                self._compare(count)
        return num_recorded

    def _compare(self, count: int) -> None:
        """Compares a step graph with ``decode`` at the first positions and the last."""
        decode = self._graph.bind(self._cache.rows(0, count))
        random = np.random.default_rng(0)
        width = self._results.rows(LOGITS, 0, 1).shape[-1]
        for position in (*range(_NUM_COMPARED), self._capacity.max_length - 1):
            ids, cached = random.integers(0, width, count).tolist(), [position] * count
            started = self._start(_Step(ids, cached, [1] * count))
            started.pending.wait()
            found = self.read_logits(count)
            expected = decode.run(started.bound.inputs)[LOGITS]
            check_logits(found, expected, position)

    def _record(self, bucket: Bucket) -> bool:
        bound = self._bind(bucket)
        return bound.run.record(bound.inputs)

    def _start(self, step: _Step) -> _Started:
        bound = self._bind(Bucket(len(step.cached), self._buckets.tokens_for(step.length)))
        inputs, count = bound.inputs, len(step.ids)
        inputs["token_ids"][:count, 0] = step.ids
        inputs["token_ids"][count:] = 0
        inputs["num_cached_tokens"][:] = step.cached
        inputs[IS_LIVE][:count] = 1
        inputs[IS_LIVE][count:] = 0
        if self._has_source:
            inputs["source_lengths"][:] = 1
            inputs["source_lengths"][:count] = step.sources
        return _Started(bound, bound.run.start(inputs), step)

    def _bind(self, bucket: Bucket) -> _Bound:
        bound = self._bound.get(bucket)
        if bound is None:
            count = bucket.num_rows
            inputs = self._make_inputs(bucket)
            run = (
                self._steps.for_rows(count)
                .bind(self._cache.rows(0, count))
                .repeat_into(
                    inputs,
                    {name: self._results.rows(name, 0, count) for name in self._result_names},
                    BEST_TOKENS if self.finds_best else None,
                    feeds_back=not self._cache.has_recurrent_states,
                )
            )
            bound = self._bound[bucket] = _Bound(bucket, run, inputs)
        return bound

    def _make_inputs(self, bucket: Bucket) -> dict[str, Array]:
        """Makes the inputs of a bucket's runs; each run sets those that differ from run to run."""
        count = bucket.num_rows
        inputs: dict[str, Array] = {
            "token_ids": np.zeros((count, 1), np.int64),
            "logit_positions": np.arange(count, dtype=np.int32),
            "num_cached_tokens": np.zeros(count, np.int32),
            "num_new_tokens": np.ones(count, np.int32),
            "max_total_length": np.array(bucket.num_tokens, np.int32),
            CANDIDATES: np.zeros((0, 0), np.int32),
            IS_LIVE: np.zeros(count, np.int32),
        }
        if self._has_source:
            inputs["source_lengths"] = np.ones(count, np.int32)
            inputs["max_source_length"] = np.array(self._capacity.max_source_length, np.int32)
            inputs[SOURCE_ROWS] = np.arange(count, dtype=np.int32)
        return inputs
