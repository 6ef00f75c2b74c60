"""Recorded runs over whole prompts (CUDA graphs), padded to a few sizes, over fixed memory.

A short prompt takes a device less time than ONNX Runtime needs to launch its kernels. A recording
has fixed addresses, so the keys and values go to memory of its own first, and then to the slots.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from model.bundle import GraphSpec, StateRole
from server.engine.cache.slot_tensors import SlotTensors
from server.engine.gpu.buckets import Bucket, TextBuckets
from server.engine.gpu.compared_logits import check_logits
from server.engine.gpu.device_logits import DeviceLogits, LogitsReader
from server.engine.gpu.sampler_inputs import LOGITS
from server.engine.run_inputs import pad
from server.runtime.contract import BEST_TOKENS, CANDIDATES, Graph, RepeatedRun
from server.runtime.memory import Array, Layout, MakeMemory, Tensor

log = logging.getLogger(__name__)

# Tokens of a run, padding included. Longer runs take so long that their launches hide behind them.
MAX_PADDED_TOKENS = 512


def can_be_recorded(spec: GraphSpec) -> bool:
    """Whether a ``decode`` graph takes prompts of several lengths in a run, and only caches."""
    caches = all(state.role == StateRole.KV for state in spec.states)
    return caches and spec.max_chunk is None and not spec.chunk_within_source


class _Bound(NamedTuple):
    """The run of a bucket, its inputs, which each run sets, and its keys and values by state."""

    run: RepeatedRun
    inputs: dict[str, Array]
    states: dict[str, Tensor]


class PaddedPrompts:
    """Runs the decoder over whole prompts, padded to a bucket, once all are recorded.

    For one thread. Implements :class:`server.engine.recording.Recorder`.

    Args:
        spec: the manifest's ``decode`` graph, which :func:`can_be_recorded`.
        graph: the loaded graph.
        cache: the tensors of all slots.
        buckets: sizes of runs.
        memory: allocates tensors on the device that runs the graph.
        reader: of the logits.

    Attributes:
        buckets: None before they are recorded, and if they cannot be.
    """

    def __init__(
        self,
        spec: GraphSpec,
        graph: Graph,
        cache: SlotTensors,
        buckets: TextBuckets,
        memory: MakeMemory,
        reader: LogitsReader,
    ) -> None:
        self.buckets: TextBuckets | None = buckets
        self._is_recorded = False
        self._spec, self._graph, self._cache, self._reader = spec, graph, cache, reader
        self._names = [LOGITS, *([BEST_TOKENS] if BEST_TOKENS in graph.outputs else [])]
        logits, num_rows = spec.output(LOGITS), buckets.rows[-1]
        width, dtype = int(logits.shape[-1]), np.dtype(logits.dtype.value)
        results = {
            LOGITS: Layout(num_rows, (width,), dtype, has_tokens=False),
            BEST_TOKENS: Layout(num_rows, (), np.dtype(np.int64), has_tokens=False),
        }
        states = cache.layouts(1, buckets.max_padded_tokens)
        self._memory = memory({**states, **{name: results[name] for name in self._names}})
        self._bound: dict[Bucket, _Bound] = {}

    @property
    def free_bytes(self) -> int | None:
        """Free memory of the device; None if the device does not report it."""
        return self._memory.free_bytes

    def stop_padding(self) -> None:
        """Makes ``buckets`` None: :meth:`run` runs nothing any more."""
        self.buckets = None

    def record(self) -> int:
        """Runs every bucket until it is recorded. All slots must be free.

        Returns:
            The number of recorded buckets; 0 if one does not run while the host goes on.

        Raises:
            RuntimeError: tokens have other probabilities than in and after a plain run.
        """
        if self.buckets is None:
            return 0
        buckets = list(self.buckets)
        for bucket in buckets:
            bound = self._bind(bucket)
            if not bound.run.record(bound.inputs) or not bound.run.is_asynchronous:
                self.stop_padding()
                return 0
        self._is_recorded = True
        # After all: a recording must not use memory of another's results.
        for bucket in {buckets[0], buckets[len(buckets) // 2], buckets[-1]}:
            self._compare(bucket)
        return len(buckets)

    def run(self, prompts: Sequence[Sequence[int]], first_slot: int) -> DeviceLogits | None:
        """Runs over whole prompts, and stores their keys and values in slots.

        Args:
            prompts: the tokens of each, at least one.
            first_slot: of the first; those of the others follow.

        Returns:
            Logits ``[prompts, vocabulary]`` after the last token of each, valid until the next run;
            None if no recorded run holds the prompts.
        """
        if self.buckets is None or not self._is_recorded:
            return None
        bucket = self.buckets.find(len(prompts), max(map(len, prompts)))
        if bucket is None:
            return None
        bound = self._bind(bucket)
        try:
            return self._run(bound, prompts, first_slot)
        except Exception:
            log.warning("a recorded run over prompts failed: they are not used", exc_info=True)
            self.stop_padding()
            return None

    def _run(
        self, bound: _Bound, prompts: Sequence[Sequence[int]], first_slot: int
    ) -> DeviceLogits:
        count, inputs = len(prompts), bound.inputs
        ids, lengths = pad(prompts)
        tokens, num_new = inputs["token_ids"], inputs["num_new_tokens"]
        tokens[...] = 0
        tokens[:count, : ids.shape[1]] = ids
        num_new[...] = 1
        num_new[:count] = lengths
        first = np.arange(len(tokens), dtype=np.int32) * tokens.shape[1]
        inputs["logit_positions"][...] = first + num_new - 1
        best = bound.run.start(inputs).wait()
        slots = range(first_slot, first_slot + count)
        self._cache.write(slots, bound.states, lengths.tolist())
        found = None if best is None else best[:count].tolist()
        return DeviceLogits(self._memory.rows(LOGITS, 0, count), self._reader, found)

    def _compare(self, bucket: Bucket) -> None:
        """Compares logits of prompts of several lengths, and what is cached, with plain runs."""
        random, bound = np.random.default_rng(0), self._bind(bucket)
        width = self._memory.rows(LOGITS, 0, 1).shape[-1]
        lengths = random.integers(1, bucket.num_tokens + 1, bucket.num_rows)
        count = min(bucket.num_rows, self._cache.num_slots)
        prompts = [random.integers(0, width, length).tolist() for length in lengths[:count]]
        rows = self._run(bound, prompts, 0).rows(range(count)).copy()
        for slot, prompt in enumerate(prompts):
            plain = self._graph.bind(self._cache.rows(slot, 1), (LOGITS,))
            last = plain.run(_inputs([prompt[-1:]], len(prompt) - 1))[LOGITS].copy()
            expected = plain.run(_inputs([prompt], 0))[LOGITS]
            check_logits(rows[slot : slot + 1], expected, len(prompt))
            check_logits(last, expected, len(prompt))

    def _bind(self, bucket: Bucket) -> _Bound:
        bound = self._bound.get(bucket)
        if bound is None:
            count, length = bucket.num_rows, bucket.num_tokens
            states = {
                name: replace(self._memory.rows(name, 0, 1), shape=(count, *layout.shape))
                for name, layout in self._cache.layouts(count, length).items()
            }
            places = {(each.input, each.output): states[each.name] for each in self._spec.states}
            inputs = _inputs([[0] * length] * count, 0)
            run = self._graph.bind(places, self._names).repeat_into(
                inputs,
                {name: self._memory.rows(name, 0, count) for name in self._names},
                BEST_TOKENS if BEST_TOKENS in self._names else None,
            )
            bound = self._bound[bucket] = _Bound(run, inputs, states)
        return bound


def _inputs(rows: Sequence[Sequence[int]], num_cached: int) -> dict[str, Array]:
    """The inputs of a run over tokens of rows after ``num_cached`` ones each."""
    ids, num_new = pad(rows)
    first = np.arange(len(rows), dtype=np.int32) * ids.shape[1]
    return {
        "token_ids": ids,
        "logit_positions": first + num_new - 1,
        "num_cached_tokens": np.full(len(rows), num_cached, np.int32),
        "num_new_tokens": num_new,
        "max_total_length": np.array(num_cached + ids.shape[1], np.int32),
        CANDIDATES: np.zeros((0, 0), np.int32),
    }
