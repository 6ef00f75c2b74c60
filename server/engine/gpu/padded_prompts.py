"""Recorded runs of a decoder over whole prompts (CUDA graphs)."""

from collections.abc import Sequence

import numpy as np

from model.bundle import GraphSpec, StateRole
from server.engine.cache.slot_tensors import SlotTensors
from server.engine.gpu.buckets import Bucket, TextBuckets
from server.engine.gpu.compared_logits import check_logits
from server.engine.gpu.device_logits import DeviceLogits, LogitsReader
from server.engine.gpu.padded_runs import Bound, PaddedRuns
from server.engine.gpu.sampler_inputs import LOGITS
from server.engine.run_inputs import pad
from server.runtime.contract import BEST_TOKENS, CANDIDATES, Graph
from server.runtime.memory import Array, Layout, MakeMemory, Tensor

# The most tokens of a run, padding included. Longer runs take longer than their kernel launches.
MAX_PROMPT_TOKENS = 1024


def has_recorded_prompts(spec: GraphSpec) -> bool:
    """Whether a ``decode`` graph takes prompts of several lengths in a run, and has only caches."""
    caches = all(state.role == StateRole.KV for state in spec.states)
    return caches and spec.max_chunk is None and not spec.chunk_within_source


class PaddedPrompts(PaddedRuns):
    """Runs the decoder over whole prompts, and stores their keys and values in slots.

    Args:
        spec: the manifest's ``decode`` graph, for which :func:`has_recorded_prompts` holds.
        graph: the loaded graph.
        cache: the tensors of all slots.
        buckets: sizes of runs.
        memory: allocates tensors on the device that runs the graph.
        reader: reads logits on the device.
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
        self._spec, self._graph, self._reader = spec, graph, reader
        self._names = [LOGITS, *([BEST_TOKENS] if BEST_TOKENS in graph.outputs else [])]
        logits, num_rows = spec.output(LOGITS), buckets.rows[-1]
        self._vocabulary_size, dtype = int(logits.shape[-1]), np.dtype(logits.dtype.value)
        results = {
            LOGITS: Layout(num_rows, (self._vocabulary_size,), dtype, has_tokens=False),
            BEST_TOKENS: Layout(num_rows, (), np.dtype(np.int64), has_tokens=False),
        }
        results = {name: results[name] for name in self._names}
        super().__init__("prompts", cache, spec.states, results, buckets, memory)

    def run(self, prompts: Sequence[Sequence[int]], first_slot: int) -> DeviceLogits | None:
        """Runs the decoder over whole prompts.

        Args:
            prompts: the tokens of each prompt.
            first_slot: the slot of the first prompt; the other prompts use the slots after it.

        Returns:
            Logits ``[prompts, vocabulary]`` after the last token of each, valid until the next run;
            None if no recorded run could do so.
        """
        return self.attempt(prompts, lambda bound: self._run(bound, prompts, first_slot))

    def _run(self, bound: Bound, prompts: Sequence[Sequence[int]], first_slot: int) -> DeviceLogits:
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
        self.cache.write(slots, bound.states, lengths.tolist())
        found = None if best is None else best[:count].tolist()
        return DeviceLogits(self.memory.rows(LOGITS, 0, count), self._reader, found)

    def compare(self, bucket: Bucket) -> None:
        """Compares the logits and caches of prompts of several lengths with plain runs."""
        random, bound = np.random.default_rng(0), self.bound(bucket)
        count = min(bucket.num_rows, self.cache.num_slots)
        lengths = random.integers(1, bucket.num_tokens + 1, count)
        prompts = [random.integers(0, self._vocabulary_size, n).tolist() for n in lengths]
        rows = self._run(bound, prompts, 0).rows(range(count)).copy()
        for slot, prompt in enumerate(prompts):
            plain = self._graph.bind(self.cache.rows(slot, 1), (LOGITS,))
            last = _inputs([prompt[-1:]], len(prompt) - 1)  # reads the cache, which may be int8
            found = plain.run(last)[LOGITS].copy()
            expected = plain.run(_inputs([prompt], 0))[LOGITS]
            check_logits(rows[slot : slot + 1], expected, len(prompt))
            check_logits(found, plain.run(last)[LOGITS], len(prompt))

    def bind(self, bucket: Bucket, states: dict[str, Tensor]) -> Bound:
        """See :class:`PaddedRuns`."""
        inputs = _inputs([[0] * bucket.num_tokens] * bucket.num_rows, 0)
        places = {(each.input, each.output): states[each.name] for each in self._spec.states}
        run = self._graph.bind(places, self._names).repeat_into(
            inputs,
            {name: self.memory.rows(name, 0, bucket.num_rows) for name in self._names},
            BEST_TOKENS if BEST_TOKENS in self._names else None,
        )
        return Bound(run, inputs, states)


def _inputs(rows: Sequence[Sequence[int]], num_cached: int) -> dict[str, Array]:
    """Makes the inputs of a run over token rows, each after ``num_cached`` cached tokens."""
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
