"""Runs an encoder over batches of texts, images or speech, and splits the outputs by input."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from model.adapters import ADAPTERS
from model.bundle import (
    ATTENDED_LENGTHS,
    MULTI_VECTORS,
    PIXELS,
    SAMPLES,
    SPARSE_WEIGHTS,
    WORD_POSITIONS,
    GraphSpec,
)
from model.span_tagging import span_inputs
from server.engine.encoder_attention import EncoderAttention
from server.engine.gpu.buckets import TextBuckets
from server.engine.gpu.padded_encoder import PaddedEncoder
from server.engine.requests.job import EncodingJob
from server.engine.requests.update import EncoderOutput
from server.engine.run_inputs import adapters_of, pad, pad_samples
from server.engine.sparse_vectors import largest_weights
from server.runtime.contract import BoundGraph, Graph
from server.runtime.memory import Array

TOKEN_VECTORS = "token_embeddings"
# The outputs with a row for each token. Only those that a job of the batch wants reach the host.
TOKEN_OUTPUTS = (TOKEN_VECTORS, SPARSE_WEIGHTS, MULTI_VECTORS)


Outputs = list[EncoderOutput | None]
"""The output for each text of a run; None if it is not finite."""

PendingOutputs = Callable[[], Outputs]
"""Waits for a run and returns its outputs. Call it once."""


class EncoderRunner:
    """Runs batches of one encoder. For one thread.

    Args:
        spec: the manifest's ``encode`` graph.
        graph: the loaded ``encode`` graph.
        attention: runs the graph that also returns attention weights; None without that graph.
        padded: runs that the device records and replays; None if runs are not recorded.
        is_sparse: whether the output has a weight for each token of the vocabulary.
    """

    def __init__(
        self,
        spec: GraphSpec,
        graph: Graph,
        attention: EncoderAttention | None = None,
        padded: PaddedEncoder | None = None,
        *,
        is_sparse: bool = False,
    ) -> None:
        self._inputs = {tensor.name for tensor in spec.inputs}
        sizes = [tensor.shape[1] for tensor in spec.inputs if tensor.name == SAMPLES]
        self._window_samples = next((size for size in sizes if isinstance(size, int)), None)
        self._output = spec.outputs[0]
        self._token_outputs = [x.name for x in spec.outputs if x.name in TOKEN_OUTPUTS]
        self._graph = graph
        self._bound: dict[tuple[str, ...], BoundGraph] = {}
        self._graph_with(())
        self._attention = attention
        self._padded = padded
        self._is_sparse = is_sparse

    @property
    def buckets(self) -> TextBuckets | None:
        """The sizes of runs to record; None if no run is recorded."""
        return None if self._padded is None else self._padded.buckets

    @property
    def free_bytes(self) -> int | None:
        """Free memory of the device; None if the device does not report it."""
        return None if self._padded is None else self._padded.free_bytes

    def record(self) -> int:
        """Runs each bucket until the device has recorded it. Stops padding if it records none.

        Returns:
            The number of recorded buckets.
        """
        count = 0 if self._padded is None else self._padded.record()
        if count == 0:
            self.stop_padding()
        return count

    def stop_padding(self) -> None:
        """Makes :attr:`buckets` None."""
        self._padded = None

    def start(self, jobs: Sequence[EncodingJob]) -> PendingOutputs | None:
        """Starts a recorded run of a batch. At most two runs may be in flight.

        Returns:
            None if no recording fits the batch.

        Raises:
            Exception: the run cannot be started.
        """
        if self._padded is None or any(job.token_outputs or job.attention for job in jobs):
            return None
        bucket = self._padded.buckets.find(len(jobs), max(job.num_tokens for job in jobs))
        if bucket is None:
            return None
        started = self._padded.start(bucket, self._inputs_of(jobs))
        return lambda: self._split(jobs, started.wait(), {})

    def run(self, jobs: Sequence[EncodingJob]) -> Outputs:
        """Runs the graph over a batch."""
        inputs = self._inputs_of(jobs)
        selection = jobs[0].attention
        if selection is not None:
            if self._attention is None:
                raise ValueError("this model has no graph with attention weights")
            weights, outputs = self._attention.run(inputs, selection, {self._output.name})
            (output,) = self._split(jobs, outputs[self._output.name], {})
            if output is None or not np.isfinite(weights).all():
                return [None]
            return [replace(output, attention=weights)]
        wanted = {name for job in jobs for name in job.token_outputs}
        names = tuple(name for name in self._token_outputs if name in wanted)
        outputs = self._graph_with(names).run(inputs)
        return self._split(
            jobs, outputs[self._output.name], {name: outputs[name] for name in names}
        )

    def _graph_with(self, names: tuple[str, ...]) -> BoundGraph:
        """The graph that returns only its first output and the outputs ``names``."""
        if names not in self._bound:
            self._bound[names] = self._graph.bind({}, (self._output.name, *names))
        return self._bound[names]

    def _inputs_of(self, jobs: Sequence[EncodingJob]) -> dict[str, Array]:
        """Builds the graph's inputs, one row for each job."""
        inputs: dict[str, Array] = {}
        if PIXELS in self._inputs:
            inputs[PIXELS] = np.stack([job.image for job in jobs if job.image is not None])
        if ADAPTERS in self._inputs:
            inputs[ADAPTERS] = adapters_of(jobs)
        if SAMPLES in self._inputs:
            windows = [job.samples for job in jobs if job.samples is not None]
            padded = pad_samples(windows, self._window_samples)
            return inputs | {name: x for name, x in padded.items() if name in self._inputs}
        if "token_ids" not in self._inputs:
            return inputs
        ids, lengths = pad([job.token_ids for job in jobs])
        inputs |= {"token_ids": ids, "lengths": lengths}
        if "segment_ids" in self._inputs:
            inputs["segment_ids"] = np.zeros_like(ids)
            for row, job in enumerate(jobs):
                if job.segment_ids:
                    inputs["segment_ids"][row, : len(job.segment_ids)] = job.segment_ids
        if ATTENDED_LENGTHS in self._inputs:
            attended = [
                len(job.token_ids) if job.num_attended is None else job.num_attended for job in jobs
            ]
            inputs[ATTENDED_LENGTHS] = np.array(attended, np.int32)
        if "logit_positions" in self._inputs:
            positions = [
                row * ids.shape[1] + position
                for row, job in enumerate(jobs)
                for position in job.logit_positions
            ]
            inputs["logit_positions"] = np.array(positions, np.int32)
        if WORD_POSITIONS in self._inputs:
            inputs |= span_inputs(
                [job.word_positions for job in jobs], [job.label_positions for job in jobs]
            )
        return inputs

    def _split(
        self, jobs: Sequence[EncodingJob], output: Array, tokens: Mapping[str, Array]
    ) -> Outputs:
        """Splits the outputs by text, and copies them: a later run overwrites their memory.

        ``tokens``: the outputs with a row for each token, by name.
        """
        outputs: Outputs = []
        start = 0
        are_finite = _are_finite(output, *tokens.values())
        for row, job in enumerate(jobs):
            if "logit_positions" in self._inputs:
                vector = output[start : start + len(job.logit_positions)]
                start += len(job.logit_positions)
            elif WORD_POSITIONS in self._inputs:
                vector = output[row, : len(job.word_positions), :, : len(job.label_positions)]
            else:
                vector = output[row, : job.num_tokens] if output.ndim > 2 else output[row]
            of_tokens = {
                name: tokens[name][row, : job.num_tokens].copy()
                for name in job.token_outputs
                if name in tokens
            }
            if not (are_finite or _are_finite(vector, *of_tokens.values())):
                outputs.append(None)
            elif self._is_sparse:
                weights = largest_weights(vector, job.max_active_dims)
                outputs.append(EncoderOutput(weights.values, indices=weights.indices))
            else:
                outputs.append(EncoderOutput(vector.copy(), of_tokens))
        return outputs


def _are_finite(*arrays: Array) -> bool:
    return all(bool(np.isfinite(array).all()) for array in arrays)
