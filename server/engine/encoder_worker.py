"""The worker of encoders: dynamic batches by padded cost. Begin at :meth:`EncoderWorker.step`."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from model.bundle import ATTENDED_LENGTHS, PIXELS, GraphSpec
from server.constraint import Floats
from server.engine.cache.idle_rows import IdleLimits
from server.engine.encoder_attention import EncoderAttention
from server.engine.encoder_batch import BatchLimits, form_batch
from server.engine.encoder_queue import EncoderQueue, QueuedText
from server.engine.failures import NOT_FINITE, run_with_isolation
from server.engine.lane import never
from server.engine.observer import Observer, RunReport, WorkerStats
from server.engine.requests.job import EncodingJob
from server.engine.requests.lifecycle import Event, Outcome, ending_event
from server.engine.requests.update import JobTimes, JobUpdate
from server.engine.run_inputs import pad
from server.engine.sparse_vectors import largest_weights
from server.engine.watchdog import Progress
from server.runtime.contract import BoundGraph, Graph
from server.runtime.memory import Array

TOKEN_VECTORS = "token_embeddings"

Clock = Callable[[], float]


class _Result(NamedTuple):
    """The result of one text, with the shapes of :class:`JobUpdate`."""

    vector: Floats
    token_vectors: Floats | None
    is_finite: bool
    indices: npt.NDArray[np.int32] | None = None
    attention: Floats | None = None


class EncoderWorker:
    """Dynamic batching of one encoder in one lane. Only the lane's thread calls it.

    Args:
        model: the model's name, for reports.
        spec: the manifest's ``encode`` graph.
        graph: the loaded ``encode`` graph.
        limits: of a batch.
        clock: returns seconds.
        observer: receives a report of every run.
        attention: the graph that also returns attention weights, if the bundle has one.
        is_sparse: whether the output has a weight for each token of the vocabulary.
    """

    def __init__(
        self,
        model: str,
        spec: GraphSpec,
        graph: Graph,
        limits: BatchLimits,
        clock: Clock,
        observer: Observer,
        attention: EncoderAttention | None = None,
        *,
        is_sparse: bool = False,
    ) -> None:
        self.model, self.progress = model, Progress(model)
        self._inputs = {tensor.name for tensor in spec.inputs}
        self._output = spec.outputs[0]
        self._graph = graph.bind({}, (self._output.name,))
        self._graph_with_tokens: BoundGraph | None = None
        if any(tensor.name == TOKEN_VECTORS for tensor in spec.outputs):
            self._graph_with_tokens = graph.bind({}, (self._output.name, TOKEN_VECTORS))
        self._attention = attention
        self._is_sparse = is_sparse
        self._limits = limits
        self._clock = clock
        self._observer = observer
        self._waiting = EncoderQueue()
        self._updates: list[JobUpdate] = []

    def __repr__(self) -> str:
        return f"EncoderWorker({self.model}, waiting={len(self._waiting)})"

    @property
    def has_work(self) -> bool:
        return len(self._waiting) > 0

    @property
    def stats(self) -> WorkerStats:
        return WorkerStats(num_waiting=len(self._waiting), num_running=0)

    def prepare(self) -> None:
        """Nothing to prepare: batches have any size."""

    def release_memory(self, limits: IdleLimits) -> bool:
        """Nothing to give back: an encoder has no cache."""
        del limits
        return False

    def submit(self, id_: int, job: EncodingJob) -> None:
        self._waiting.add(QueuedText(id_, job, JobTimes(self._clock())))

    def cancel(self, id_: int, output: int | None = None) -> None:
        """Marks a text to end in the next step; ignores a text that has ended."""
        del output
        self._waiting.cancel(id_)

    def step(self, may_continue: Callable[[], bool] = never) -> list[JobUpdate]:
        """Schedules, runs and applies one batch. Returns an update for each text that ended.

        ``may_continue``: not used.
        """
        del may_continue
        batch = self._schedule(self._clock())
        label = f"a run of {self.model}"
        for ran in run_with_isolation(batch, self._run, label) if batch else ():
            self._apply(*ran)
        updates, self._updates = self._updates, []
        return updates

    def _schedule(self, now: float) -> list[QueuedText]:
        """Ends texts that are cancelled or past their deadline, and chooses the next batch."""
        for text, outcome in self._waiting.due(now):
            self._finish(text, outcome, now)
        texts = self._waiting.next_candidates()
        if not texts:
            return []
        # The caller of several texts cannot go on before all have ended.
        chosen = form_batch(
            [text.job.num_tokens for text in texts],
            self._limits,
            leaves_half=len(texts) > texts[0].job.num_texts,
        )
        batch = [texts[index] for index in chosen]
        for text in batch:
            text.on(Event.ENCODE)
            text.times.started = now
        return batch

    def _finish(
        self,
        text: QueuedText,
        outcome: Outcome,
        now: float,
        failure: str = "",
        result: _Result | None = None,
    ) -> None:
        """Ends a text. No other method does."""
        text.on(ending_event(outcome))
        self._waiting.remove(text)
        completion = text.times.complete(outcome, now, failure)
        if result is None:
            self._updates.append(JobUpdate(text.id, completion=completion))
            return
        self._updates.append(
            JobUpdate(
                text.id,
                vector=result.vector,
                indices=result.indices,
                token_vectors=result.token_vectors,
                attention=result.attention,
                completion=completion,
            )
        )

    def _apply(
        self, texts: Sequence[QueuedText], results: Sequence[_Result] | None, failure: str
    ) -> None:
        """Ends each text of a run; ``results`` is None if the run failed, for this reason."""
        now = self._clock()
        if results is None:
            for text in texts:
                self._finish(text, Outcome.FAILED, now, failure)
            return
        for text, result in zip(texts, results, strict=True):
            if result.is_finite:
                text.times.first_token = now
                self._finish(text, Outcome.DONE, now, result=result)
            else:
                self._finish(text, Outcome.FAILED, now, NOT_FINITE)

    def _run(self, texts: Sequence[QueuedText]) -> list[_Result]:
        """Runs the graph over a batch. Each result owns its memory."""
        started = self._clock()
        jobs = [text.job for text in texts]
        inputs, num_tokens = self._inputs_of(jobs), sum(job.num_tokens for job in jobs)
        self.progress.begin(len(jobs) * max(job.num_tokens for job in jobs))
        results = self._compute(jobs, inputs)
        report = RunReport("encode", len(jobs), num_tokens, (self._clock() - started,))
        self._observer.on_run(self.model, report)
        return results

    def _inputs_of(self, jobs: Sequence[EncodingJob]) -> dict[str, Array]:
        """The graph's inputs: one row for each job."""
        inputs: dict[str, Array] = {}
        if PIXELS in self._inputs:
            inputs[PIXELS] = np.stack([job.image for job in jobs if job.image is not None])
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
        return inputs

    def _compute(self, jobs: Sequence[EncodingJob], inputs: dict[str, Array]) -> list[_Result]:
        selection = jobs[0].attention
        if selection is not None:
            if self._attention is None:
                raise ValueError("this model has no graph with attention weights")
            weights, outputs = self._attention.run(inputs, selection, {self._output.name})
            (result,) = self._split(jobs, outputs[self._output.name], None)
            is_finite = result.is_finite and bool(np.isfinite(weights).all())
            return [result._replace(attention=weights, is_finite=is_finite)]
        graph = self._graph
        if self._graph_with_tokens is not None and any(job.wants_tokens for job in jobs):
            graph = self._graph_with_tokens
        outputs = graph.run(inputs)
        return self._split(jobs, outputs[self._output.name], outputs.get(TOKEN_VECTORS))

    def _split(
        self, jobs: Sequence[EncodingJob], output: Array, tokens: Array | None
    ) -> list[_Result]:
        """Copies each text's outputs: the next run overwrites this run's memory."""
        results, start = [], 0
        are_finite = _are_finite(output, tokens)
        for row, job in enumerate(jobs):
            if "logit_positions" in self._inputs:
                vector = output[start : start + len(job.logit_positions)]
                start += len(job.logit_positions)
            else:
                vector = output[row, : job.num_tokens] if output.ndim > 2 else output[row]
            token_vectors = None
            if tokens is not None and job.wants_tokens:
                token_vectors = tokens[row, : job.num_tokens].copy()
            is_finite = are_finite or _are_finite(vector, token_vectors)
            if self._is_sparse:
                weights = largest_weights(vector, job.max_active_dims)
                results.append(_Result(weights.values, None, is_finite, weights.indices))
            else:
                results.append(_Result(vector.copy(), token_vectors, is_finite))
        return results


def _are_finite(*arrays: Array | None) -> bool:
    return all(array is None or bool(np.isfinite(array).all()) for array in arrays)
