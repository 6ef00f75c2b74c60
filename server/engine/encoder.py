"""The worker of encoders: batches by padded cost, ``step()``: schedule → run → apply."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from model.bundle import GraphSpec
from server.engine.isolation import run_with_isolation
from server.engine.observer import Load, Observer, RunReport
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.sequence import EncodingJob, Floats, JobTimes, JobUpdate
from server.engine.runner import pad
from server.runtime.contract import Array, BoundGraph, Graph

TOKEN_VECTORS = "token_embeddings"
MAX_OVERTAKEN = 3

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """``max_padded_tokens``: rows times the longest. ``max_padding``: padded over real tokens."""

    max_padded_tokens: int
    max_padding: float = 1.25


def choose_first(are_bulk: Sequence[bool], num_overtaken: int) -> int:
    """Which of the waiting texts runs for sure: a pure function.

    It is the oldest, but for bulk work, which a text that somebody waits for overtakes up to
    ``MAX_OVERTAKEN`` times in succession.

    Args:
        are_bulk: of each waiting text, in order of arrival; not empty.
        num_overtaken: how often the oldest was overtaken since it, or one before it, was chosen.
    """
    if num_overtaken >= MAX_OVERTAKEN:
        return 0
    return next((index for index, is_bulk in enumerate(are_bulk) if not is_bulk), 0)


def form_batch(lengths: Sequence[int], limits: BatchLimits, first: int = 0) -> tuple[int, ...]:
    """Which of the waiting texts to run now: a pure function.

    ``first`` always runs; those nearest to it in length join it, as long as the
    batch stays within bounds. A text larger than the bound runs alone.

    Where less than two full batches wait, half of that runs, or half a full batch: the other half
    is there when it ends, while those who were answered ask again.

    Args:
        lengths: tokens of each waiting text, in order of arrival; not empty.
        limits: of a batch.
        first: an index into ``lengths``.

    Returns:
        Indices into ``lengths``, ``first`` before the others.
    """
    full = limits.max_padded_tokens
    most = min(full, max(full // 2, sum(lengths) // 2))
    longest = total = size = lengths[first]
    others = sorted(range(len(lengths)), key=lambda index: abs(lengths[index] - size))
    others.remove(first)
    batch = [first]
    for index in others:
        new_longest = max(longest, lengths[index])
        padded = new_longest * (len(batch) + 1)
        new_total = total + lengths[index]
        if padded > most or padded > limits.max_padding * new_total:
            break
        batch.append(index)
        longest, total = new_longest, new_total
    return tuple(batch)


@dataclass(slots=True)
class _Text:
    id: int
    job: EncodingJob
    times: JobTimes
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class _Result:
    """As in :class:`JobUpdate`."""

    vector: Floats
    token_vectors: Floats | None


class Encoder:
    """Dynamic batching of one encoder in one lane. Only the lane's thread calls it.

    Args:
        model: its name, for reports.
        spec: the manifest's ``encode`` graph.
        graph: the same, loaded.
        limits: of a batch.
        clock: seconds.
        observer: told of every run.
    """

    def __init__(
        self,
        model: str,
        spec: GraphSpec,
        graph: Graph,
        limits: BatchLimits,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self.model = model
        self._inputs = {tensor.name for tensor in spec.inputs}
        self._output = spec.outputs[0]
        self._graph = graph.bind({}, (self._output.name,))
        self._graph_with_tokens: BoundGraph | None = None
        if any(tensor.name == TOKEN_VECTORS for tensor in spec.outputs):
            self._graph_with_tokens = graph.bind({}, (self._output.name, TOKEN_VECTORS))
        self._limits = limits
        self._clock = clock
        self._observer = observer
        self._waiting: dict[int, _Text] = {}
        self._num_overtaken = 0

    def __repr__(self) -> str:
        return f"Encoder({self.model}, waiting={len(self._waiting)})"

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    @property
    def load(self) -> Load:
        return Load(num_waiting=len(self._waiting), num_running=0)

    def prepare(self) -> None:
        """Nothing: batches of texts are of any size."""

    def submit(self, id_: int, job: EncodingJob) -> None:
        self._waiting[id_] = _Text(id_, job, JobTimes(self._clock()))

    def cancel(self, id_: int, output: int | None = None) -> None:
        """The text, which has one output, leaves at the next step; an ended one is no error."""
        del output
        text = self._waiting.get(id_)
        if text is not None:
            text.is_cancelled = True

    def step(self) -> list[JobUpdate]:
        """Runs one batch. Returns a result or a failure for each text that left."""
        now = self._clock()
        updates = self._drop_over(now)
        waiting = list(self._waiting.values())
        if not waiting:
            return updates
        first = choose_first([text.job.is_bulk for text in waiting], self._num_overtaken)
        self._num_overtaken = self._num_overtaken + 1 if first else 0
        lengths = [len(text.job.token_ids) for text in waiting]
        batch = [waiting[index] for index in form_batch(lengths, self._limits, first)]
        for text in batch:
            text.times.started = now
            del self._waiting[text.id]

        def run(texts: Sequence[_Text]) -> list[_Result]:
            return self._run([text.job for text in texts])

        for attempt in run_with_isolation(batch, run, f"a run of {self.model}"):
            if attempt.result is None:
                updates += [self._failure(text, "the model run failed") for text in attempt.items]
            else:
                updates += self._apply(attempt.items, attempt.result)
        return updates

    def _drop_over(self, now: float) -> list[JobUpdate]:
        updates = []
        for text in tuple(self._waiting.values()):
            deadline = text.job.deadline
            if text.is_cancelled or (deadline is not None and deadline <= now):
                outcome = Outcome.CANCELLED if text.is_cancelled else Outcome.DEADLINE
                updates.append(JobUpdate(text.id, completion=text.times.end(outcome, now)))
                del self._waiting[text.id]
        return updates

    def _run(self, jobs: Sequence[EncodingJob]) -> list[_Result]:
        """What the graph gives for each job; the memory is the job's own."""
        started = self._clock()
        ids, lengths = pad([job.token_ids for job in jobs])
        inputs = {"token_ids": ids, "lengths": lengths}
        if "segment_ids" in self._inputs:
            inputs["segment_ids"], _ = pad(
                [job.segment_ids or (0,) * len(job.token_ids) for job in jobs]
            )
        if "logit_positions" in self._inputs:
            positions = [
                row * ids.shape[1] + position
                for row, job in enumerate(jobs)
                for position in job.logit_positions
            ]
            inputs["logit_positions"] = np.array(positions, np.int32)
        graph = self._graph
        if self._graph_with_tokens is not None and any(job.wants_tokens for job in jobs):
            graph = self._graph_with_tokens
        outputs = graph.run(inputs)
        results = self._split(jobs, outputs[self._output.name], outputs.get(TOKEN_VECTORS))
        report = RunReport("encode", len(jobs), int(lengths.sum()), self._clock() - started)
        self._observer.on_run(self.model, report)
        return results

    def _split(
        self, jobs: Sequence[EncodingJob], output: Array, tokens: Array | None
    ) -> list[_Result]:
        """Copies: the run's memory is used again by the next run."""
        results, start = [], 0
        for row, job in enumerate(jobs):
            if "logit_positions" in self._inputs:
                vector = output[start : start + len(job.logit_positions)]
                start += len(job.logit_positions)
            else:
                vector = output[row, : len(job.token_ids)] if output.ndim > 2 else output[row]
            token_vectors = None
            if tokens is not None and job.wants_tokens:
                token_vectors = tokens[row, : len(job.token_ids)].copy()
            results.append(_Result(vector.copy(), token_vectors))
        return results

    def _apply(self, batch: Sequence[_Text], results: Sequence[_Result]) -> list[JobUpdate]:
        now = self._clock()
        updates = []
        for text, result in zip(batch, results, strict=True):
            vectors = result.token_vectors
            is_finite = vectors is None or np.isfinite(vectors).all()
            if not (is_finite and np.isfinite(result.vector).all()):
                updates.append(self._failure(text, "the model's output is not finite"))
                continue
            text.times.first_token = now
            end = text.times.end(Outcome.DONE, now)
            updates.append(
                JobUpdate(
                    text.id,
                    vector=result.vector,
                    token_vectors=result.token_vectors,
                    completion=end,
                )
            )
        return updates

    def _failure(self, text: _Text, reason: str) -> JobUpdate:
        return JobUpdate(text.id, completion=text.times.end(Outcome.FAILED, self._clock(), reason))
