"""Recorded runs of an encoder-decoder's encoder over texts (CUDA graphs)."""

from collections.abc import Sequence

import numpy as np

from model.bundle import GraphSpec
from server.engine.cache.slot_tensors import SlotTensors
from server.engine.gpu.buckets import Bucket, TextBuckets
from server.engine.gpu.padded_runs import Bound, PaddedRuns
from server.engine.run_inputs import pad
from server.runtime.contract import Graph
from server.runtime.memory import Array, MakeMemory, Tensor

# The most tokens of a run, padding included. The encoders of encoder-decoders are small.
MAX_SOURCE_TOKENS = 2048
_INPUTS = {"token_ids", "lengths"}
# The largest difference between a recorded and a plain run, relative to the largest value.
_TOLERANCE = 0.02


def has_recorded_sources(spec: GraphSpec) -> bool:
    """Whether an ``encode`` graph takes only texts."""
    return {tensor.name for tensor in spec.inputs} == _INPUTS


class PaddedSources(PaddedRuns):
    """Runs the encoder over sources, and stores its outputs in slots.

    Args:
        graph: the loaded ``encode`` graph, for which :func:`has_recorded_sources` holds.
        cache: the tensors of all slots.
        buckets: sizes of runs.
        memory: allocates tensors on the device that runs the graph.
        vocabulary_size: the model's vocabulary size.
    """

    def __init__(
        self,
        graph: Graph,
        cache: SlotTensors,
        buckets: TextBuckets,
        memory: MakeMemory,
        vocabulary_size: int,
    ) -> None:
        self._graph, self._vocabulary_size = graph, vocabulary_size
        self._outputs = {state.name: state.source or "" for state in cache.filled_by_encoder}
        super().__init__("sources", cache, cache.filled_by_encoder, {}, buckets, memory)

    def run(self, sources: Sequence[Sequence[int]], slots: Sequence[int]) -> bool:
        """Runs the encoder over source tokens. Returns False if no recorded run could do so."""
        found = self.attempt(sources, lambda bound: self._run(bound, sources, slots))
        return found is not None

    def _run(self, bound: Bound, sources: Sequence[Sequence[int]], slots: Sequence[int]) -> bool:
        ids, lengths = pad(sources)
        given, count = bound.inputs, len(sources)
        given["token_ids"][...] = 0
        given["token_ids"][:count, : ids.shape[1]] = ids
        given["lengths"][...] = 1
        given["lengths"][:count] = lengths
        bound.run.start(given).wait()
        self.cache.write(slots, bound.states, lengths.tolist())
        return True

    def compare(self, bucket: Bucket) -> None:
        """Compares the outputs for sources of several lengths with those of a plain run."""
        random, bound = np.random.default_rng(0), self.bound(bucket)
        given = bound.inputs
        given["token_ids"][...] = random.integers(
            0, self._vocabulary_size, given["token_ids"].shape
        )
        given["lengths"][...] = random.integers(1, bucket.num_tokens + 1, bucket.num_rows)
        bound.run.start(given).wait()
        found = {name: self._read(name, bound.states[name].shape) for name in self._outputs}
        expected = self._graph.bind({}, list(self._outputs.values())).run(given)
        for name, output in self._outputs.items():
            self._check(name, found[name], expected[output].astype(np.float32), given["lengths"])

    def _read(self, name: str, shape: tuple[int, ...]) -> Array:
        values = self.memory.read_all(name).ravel()[: int(np.prod(shape))]
        return values.reshape(shape).astype(np.float32)

    def _check(self, name: str, found: Array, expected: Array, lengths: Array) -> None:
        """Raises ``RuntimeError`` if the outputs differ. Ignores tokens of padding."""
        if self.cache.layouts(1, 1, 1)[name].has_tokens:
            is_token = np.arange(found.shape[2]) < lengths[:, None]
            found, expected = (
                np.where(is_token[:, None, :, None], values, 0) for values in (found, expected)
            )
        difference = float(np.abs(found - expected).max())
        if not difference <= _TOLERANCE * float(np.abs(expected).max()):
            raise RuntimeError(
                f"{name} of a recorded run over {found.shape[0]} sources differs from that of a "
                f"plain one by {difference:.3g}"
            )

    def bind(self, bucket: Bucket, states: dict[str, Tensor]) -> Bound:
        """See :class:`PaddedRuns`."""
        inputs: dict[str, Array] = {
            "token_ids": np.zeros((bucket.num_rows, bucket.num_tokens), np.int64),
            "lengths": np.ones(bucket.num_rows, np.int32),
        }
        places = {self._outputs[name]: tensor for name, tensor in states.items()}
        run = self._graph.bind({}, list(places)).repeat_into(inputs, places)
        return Bound(run, inputs, states)
