"""Recorded runs of an encoder (CUDA graphs): texts padded to a few fixed sizes, over fixed memory.

A recorded run costs the host one launch instead of one for each kernel, and the host continues
while the device encodes.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from model.bundle import GraphSpec
from server.constraint import Floats
from server.engine.gpu.buckets import Bucket, TextBuckets
from server.runtime.contract import Graph, Pending, RepeatedRun
from server.runtime.memory import Array, Layout, MakeMemory

# The names of the inputs, and their values in rows of padding.
_PADDING = {"token_ids": 0, "lengths": 1, "segment_ids": 0}
# The widest output of a text. Wider ones, such as sparse vectors, would take too much memory.
_MAX_WIDTH = 8192
# The largest difference between a recorded and a plain run of the same shape, relative to the
# largest value.
_TOLERANCE = 0.01


def can_be_padded(spec: GraphSpec) -> bool:
    """Whether a graph takes only texts and returns one vector for each."""
    output = spec.outputs[0].shape
    return (
        {tensor.name for tensor in spec.inputs} <= _PADDING.keys()
        and len(output) == 2
        and isinstance(output[1], int)
        and output[1] <= _MAX_WIDTH
    )


class _Bound(NamedTuple):
    """The run of a bucket, and its inputs, which each run sets."""

    run: RepeatedRun
    inputs: dict[str, Array]


class StartedTexts(NamedTuple):
    """Texts that the device encodes."""

    num_texts: int
    pending: Pending

    def wait(self) -> Floats:
        """Waits for the vectors ``[texts, width]``. Call it once.

        They are valid until the second run after this one starts.

        Raises:
            Exception: the run failed.
        """
        result = self.pending.wait()
        if result is None:
            raise RuntimeError("a recorded run has no result")
        return result[: self.num_texts]


class PaddedEncoder:
    """Encodes texts, padded to a bucket, once all buckets are recorded. For one thread.

    At most two runs may be in flight: started, and not waited for.

    Args:
        spec: the manifest's ``encode`` graph, for which :func:`can_be_padded` holds.
        graph: the loaded graph.
        buckets: sizes of runs.
        memory: allocates tensors on the device that runs the graph.
        vocabulary_size: the model's vocabulary size.
    """

    _last: Pending | None = None  # the run that was started last

    def __init__(
        self,
        spec: GraphSpec,
        graph: Graph,
        buckets: TextBuckets,
        memory: MakeMemory,
        vocabulary_size: int,
    ) -> None:
        self.buckets = buckets
        self._vocabulary_size = vocabulary_size
        self._input_names = tuple(tensor.name for tensor in spec.inputs)
        output = spec.outputs[0]
        self._output = output.name
        layout = Layout(
            buckets.rows[-1],
            (int(output.shape[1]),),
            np.dtype(output.dtype.value),
            has_tokens=False,
        )
        self._results = memory({output.name: layout})
        self._graph = graph
        # One for each bucket: a recording fixes the addresses of its input buffers.
        self._bound: dict[Bucket, _Bound] = {}

    @property
    def free_bytes(self) -> int | None:
        """Free memory of the device; None if the device does not report it."""
        return self._results.free_bytes

    def record(self) -> int:
        """Runs every bucket until it is recorded.

        Returns:
            The number of recorded buckets; 0 if one is not recorded or not asynchronous.

        Raises:
            RuntimeError: the results of a recorded run differ from a plain one's.
        """
        buckets = list(self.buckets)
        for bucket in buckets:
            run, inputs = self._bind(bucket)
            if not run.record(inputs) or not run.is_asynchronous:
                return 0
        # After all recordings: this shows if one uses the memory of another's results.
        for bucket in {buckets[0], buckets[len(buckets) // 2], buckets[-1]}:
            self._compare(bucket)
        return len(buckets)

    def start(self, bucket: Bucket, given: Mapping[str, Array]) -> StartedTexts:
        """Starts to encode texts that fit the bucket.

        ``given``: the inputs of a plain run over the same texts.

        Raises:
            Exception: the run cannot be started.
        """
        run, inputs = self._bind(bucket)
        for name, array in inputs.items():
            array[...] = _PADDING[name]
            array[tuple(map(slice, given[name].shape))] = given[name]
        return self._start(run, inputs, len(given["token_ids"]))

    def __del__(self) -> None:
        """Waits for the device, which must not write to memory after its release."""
        if self._last is not None:
            self._last.drop()

    def _start(self, run: RepeatedRun, inputs: dict[str, Array], count: int) -> StartedTexts:
        self._last = run.start(inputs)
        return StartedTexts(count, self._last)

    def _compare(self, bucket: Bucket) -> None:
        """Compares a recorded run over texts of several lengths with a plain one."""
        run, inputs = self._bind(bucket)
        random = np.random.default_rng(0)
        ids = inputs["token_ids"]
        ids[...] = random.integers(0, self._vocabulary_size, ids.shape)
        if "lengths" in inputs:
            inputs["lengths"][...] = random.integers(1, bucket.num_tokens + 1, bucket.num_rows)
        found = self._start(run, inputs, bucket.num_rows).wait().copy()
        plain = self._graph.bind({}, (self._output,))
        expected = plain.run(inputs)[self._output]
        difference = float(np.abs(found - expected).max())
        if not difference <= _TOLERANCE * float(np.abs(expected).max()):
            raise RuntimeError(
                f"a recorded run of {bucket.num_rows} texts of {bucket.num_tokens} tokens differs "
                f"from a plain one by {difference:.3g}"
            )

    def _bind(self, bucket: Bucket) -> _Bound:
        bound = self._bound.get(bucket)
        if bound is None:
            inputs = self._make_inputs(bucket)
            results = {self._output: self._results.rows(self._output, 0, bucket.num_rows)}
            run = self._graph.bind({}, (self._output,)).repeat_into(inputs, results, self._output)
            bound = self._bound[bucket] = _Bound(run, inputs)
        return bound

    def _make_inputs(self, bucket: Bucket) -> dict[str, Array]:
        shape = (bucket.num_rows, bucket.num_tokens)
        inputs: dict[str, Array] = {
            "token_ids": np.zeros(shape, np.int64),
            "lengths": np.ones(bucket.num_rows, np.int32),
            "segment_ids": np.zeros(shape, np.int64),
        }
        return {name: inputs[name] for name in self._input_names}
