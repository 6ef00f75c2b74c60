"""Recorded runs (CUDA graphs) whose results go to slots: padded to a few sizes, over fixed memory.

A device executes a short run faster than ONNX Runtime launches its kernels. A recording has fixed
addresses, so it writes keys and values to separate memory, from which they are copied to slots.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from model.bundle import StateSpec
from server.engine.cache.slot_tensors import SlotTensors
from server.engine.gpu.buckets import Bucket, TextBuckets
from server.runtime.contract import RepeatedRun
from server.runtime.memory import Array, Layout, MakeMemory, Memory, Tensor

log = logging.getLogger(__name__)

T = TypeVar("T")


class Bound(NamedTuple):
    """The run of a bucket, its inputs, which each run sets, and the states that it fills."""

    run: RepeatedRun
    inputs: dict[str, Array]
    states: dict[str, Tensor]


class PaddedRuns(ABC):
    """Runs a graph over texts, padded to a bucket, once all buckets are recorded. For one thread.

    Implements :class:`server.engine.recording.Recorder`.

    Args:
        name: what the graph runs over, for the log.
        cache: the tensors of all slots.
        states: the states that the runs fill.
        results: layouts of the other outputs, by name.
        buckets: sizes of runs.
        memory: allocates tensors on the device that runs the graph.

    Attributes:
        buckets: the sizes of runs; None once padding has stopped.
    """

    def __init__(
        self,
        name: str,
        cache: SlotTensors,
        states: Sequence[StateSpec],
        results: Mapping[str, Layout],
        buckets: TextBuckets,
        memory: MakeMemory,
    ) -> None:
        self.buckets: TextBuckets | None = buckets
        self.cache = cache
        self._name, self._states, self._is_recorded = name, tuple(states), False
        num_rows, num_tokens = buckets.rows[-1], buckets.max_padded_tokens
        # Tensors with tokens share their memory: a bucket has many short rows, or few long ones.
        layouts = {
            name: replace(layout, num_rows=1 if layout.has_tokens else num_rows)
            for name, layout in self._layouts(num_tokens).items()
        }
        self._memory: Memory | None = memory({**layouts, **results})
        self._bound: dict[Bucket, Bound] = {}

    @property
    def memory(self) -> Memory:
        """Holds the states and results of runs, until padding stops."""
        assert self._memory is not None, "padding has stopped"
        return self._memory

    @property
    def free_bytes(self) -> int | None:
        """Free memory of the device; None if the device does not report it."""
        return self.cache.free_bytes

    def stop_padding(self) -> None:
        """Releases all recorded runs: :meth:`attempt` returns None from now on."""
        self.buckets = self._memory = None
        self._bound.clear()

    def record(self) -> int:
        """Runs every bucket until it is recorded. All slots must be free.

        Returns:
            The number of recorded buckets; 0 if one is not recorded or not asynchronous.

        Raises:
            RuntimeError: the results of a recorded run differ from a plain one's.
        """
        if self.buckets is None:
            return 0
        buckets = list(self.buckets)
        for bucket in buckets:
            bound = self.bound(bucket)
            if not bound.run.record(bound.inputs) or not bound.run.is_asynchronous:
                self.stop_padding()
                return 0
        self._is_recorded = True
        # After all recordings: this shows if one uses the memory of another's results.
        for bucket in {buckets[0], buckets[len(buckets) // 2], buckets[-1]}:
            self.compare(bucket)
        return len(buckets)

    def holds(self, lengths: Sequence[int]) -> bool:
        """Returns whether a recorded run holds texts of these lengths."""
        return self._find(lengths) is not None

    def attempt(self, texts: Sequence[Sequence[int]], run: Callable[[Bound], T]) -> T | None:
        """Calls ``run`` with the recorded run that holds ``texts``, and returns its result.

        Returns None if there is no such run, or if it fails; then padding stops.
        """
        bucket = self._find(list(map(len, texts)))
        if bucket is None:
            return None
        try:
            return run(self.bound(bucket))
        except Exception:
            log.warning(
                "a recorded run over %s failed: plain ones go on", self._name, exc_info=True
            )
            self.stop_padding()
            return None

    def bound(self, bucket: Bucket) -> Bound:
        """Returns the run of a bucket. Prepares it on first use."""
        if bucket not in self._bound:
            count, length = bucket.num_rows, bucket.num_tokens
            states = {
                name: replace(self.memory.rows(name, 0, 1), shape=(count, *layout.shape))
                for name, layout in self._layouts(length).items()
            }
            self._bound[bucket] = self.bind(bucket, states)
        return self._bound[bucket]

    @abstractmethod
    def bind(self, bucket: Bucket, states: dict[str, Tensor]) -> Bound:
        """Prepares the run of a bucket, which fills ``states``."""

    @abstractmethod
    def compare(self, bucket: Bucket) -> None:
        """Compares a recorded run with a plain one. Raises ``RuntimeError`` if they differ."""

    def _find(self, lengths: Sequence[int]) -> Bucket | None:
        if self.buckets is None or not self._is_recorded:
            return None
        return self.buckets.find(len(lengths), max(lengths))

    def _layouts(self, num_tokens: int) -> dict[str, Layout]:
        layouts = self.cache.layouts(1, num_tokens, num_tokens)
        return {state.name: layouts[state.name] for state in self._states}
