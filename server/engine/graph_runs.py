"""Prepares runs of a decoder's graph over chunks of tokens, and wraps their logits."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from server.constraint import Floats
from server.engine.cache.slot_tensors import SlotTensors
from server.engine.candidates import ALL_TOKENS, CandidateBatches, mask
from server.engine.decoding.logits import HostLogits, Logits
from server.engine.gpu.device_logits import DeviceLogits, LogitsReader
from server.engine.gpu.sampler_inputs import LOGITS, SUPPRESSED_LOGIT
from server.engine.recent_bindings import RecentBindings
from server.engine.requests.job import GenerationJob
from server.engine.run_inputs import Chunk, RunInputs
from server.engine.watchdog import Progress
from server.runtime.contract import BEST_TOKENS, CANDIDATES, Graph


class GraphRuns:
    """Runs a ``decode`` graph over chunks of sequences in adjacent slots. For one thread.

    Args:
        graph: the loaded graph.
        cache: the tensors of all slots.
        inputs: makes the inputs of runs.
        vocabulary_size: the number of logits of a token.
        suppressed: tokens that are never generated.
        reader: reads logits on the device on demand; None copies all rows after every run.
        progress: told of each run before it begins.
    """

    def __init__(
        self,
        *,
        graph: Graph,
        cache: SlotTensors,
        inputs: RunInputs,
        vocabulary_size: int,
        suppressed: Sequence[int],
        reader: LogitsReader | None,
        progress: Progress,
    ) -> None:
        self._inputs, self._reader, self._progress = inputs, reader, progress
        self._suppressed = np.array(suppressed, np.intp)
        self._candidates = CandidateBatches(vocabulary_size)
        self._finds_best = reader is not None and BEST_TOKENS in graph.outputs
        outputs = {LOGITS, BEST_TOKENS} if self._finds_best else {LOGITS}
        self._bindings = RecentBindings(
            lambda first_slot, num_slots: graph.bind(cache.rows(first_slot, num_slots), outputs),
            2 * cache.num_slots,
        )

    def prepare(
        self, chunks: Sequence[Chunk], first_slot: int, *, all_positions: bool = False
    ) -> Callable[[], Logits]:
        """Returns a function that runs the chunks. It is valid until the next call.

        Args:
            chunks: the next tokens of sequences in adjacent slots.
            first_slot: the slot of the first sequence.
            all_positions: whether to return the logits after every token of the only chunk, and
                not only those after each chunk's last token.
        """
        bound = self._bindings.of(first_slot, len(chunks))
        inputs = self._inputs.of(chunks, all_positions=all_positions)
        inputs[CANDIDATES] = ALL_TOKENS
        num_tokens = sum(chunk.size for chunk in chunks)
        reader = self._reader
        if reader is not None:

            def run_on_device() -> Logits:
                self._progress.begin(num_tokens)
                if not self._finds_best:
                    return DeviceLogits(bound.run_on_device(inputs)[LOGITS], reader)
                outputs = bound.run_on_device(inputs, on_host={BEST_TOKENS})
                best: Any = outputs[BEST_TOKENS].owner
                return DeviceLogits(outputs[LOGITS], reader, best.tolist())

            return run_on_device
        jobs = [chunk.sequence.job for chunk in chunks]
        if all_positions:
            jobs *= chunks[0].size  # one for each row of logits
        candidates = self._candidates.of(jobs)
        if candidates is not None:
            inputs[CANDIDATES] = candidates.tensor

        def run() -> Logits:
            self._progress.begin(num_tokens)
            logits = bound.run(inputs)[LOGITS]
            if candidates is not None and logits.shape == candidates.ids.shape:
                return candidates.logits(logits)
            return self.wrap(logits, jobs)

        return run

    def wrap(self, logits: Floats, jobs: Sequence[GenerationJob]) -> HostLogits:
        """Masks logits ``[rows, vocabulary]`` in place, one row for each job, and wraps them."""
        if self._suppressed.size:
            logits[:, self._suppressed] = SUPPRESSED_LOGIT
        mask(logits, jobs)
        return HostLogits(logits)
