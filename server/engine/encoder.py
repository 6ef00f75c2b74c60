"""The worker of encoders: batches by padded cost, ``step()``: schedule → run → apply."""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np

from model.bundle import Graph as GraphSpec
from server.backend.base import Array, Graph
from server.engine.lifecycle import Outcome
from server.engine.observer import Load, Observer, RunReport
from server.engine.runner import pad
from server.engine.sequence import EncodingJob, Progress, Times

Clock = Callable[[], float]
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """``max_padded_tokens``: rows times the longest. ``max_padding``: padded over real tokens."""

    max_padded_tokens: int
    max_padding: float = 1.25


def form_batch(lengths: Rows[int], limits: BatchLimits) -> tuple[int, ...]:
    """Which of the waiting texts to run now: a pure function.

    The oldest always runs; those nearest to it in length join it, as long as the
    batch stays within bounds. A text larger than the bound runs alone.

    Args:
        lengths: tokens of each waiting text, in order of arrival; not empty.
        limits: of a batch.

    Returns:
        Indices into ``lengths``, the oldest first.
    """
    oldest = lengths[0]
    others = sorted(range(1, len(lengths)), key=lambda index: abs(lengths[index] - oldest))
    batch, longest, total = [0], oldest, oldest
    for index in others:
        new_longest = max(longest, lengths[index])
        padded = new_longest * (len(batch) + 1)
        new_total = total + lengths[index]
        if padded > limits.max_padded_tokens or padded > limits.max_padding * new_total:
            break
        batch.append(index)
        longest, total = new_longest, new_total
    return tuple(batch)


@dataclass(slots=True)
class _Text:
    id: int
    job: EncodingJob
    times: Times
    is_cancelled: bool = False


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
        self._graph = graph.bind({})
        self._has_segments = any(tensor.name == "segment_ids" for tensor in spec.inputs)
        self._output = spec.outputs[0].name
        self._limits = limits
        self._clock = clock
        self._observer = observer
        self._waiting: dict[int, _Text] = {}

    def __repr__(self) -> str:
        return f"Encoder({self.model}, waiting={len(self._waiting)})"

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    @property
    def load(self) -> Load:
        return Load(num_waiting=len(self._waiting), num_running=0)

    def submit(self, id_: int, job: EncodingJob) -> None:
        self._waiting[id_] = _Text(id_, job, Times(self._clock()))

    def cancel(self, id_: int, output: int | None = None) -> None:
        """The text, which has one output, leaves at the next step; an ended one is no error."""
        del output
        text = self._waiting.get(id_)
        if text is not None:
            text.is_cancelled = True

    def step(self) -> list[Progress]:
        """Runs one batch. Returns a vector or a failure for each text that left."""
        now = self._clock()
        news = self._drop_over(now)
        waiting = list(self._waiting.values())
        if not waiting:
            return news
        lengths = [len(text.job.token_ids) for text in waiting]
        batch = [waiting[index] for index in form_batch(lengths, self._limits)]
        for text in batch:
            text.times.started = now
            del self._waiting[text.id]
        try:
            vectors = self._run([text.job.token_ids for text in batch])
        except Exception:
            log.exception("a run of %s failed for %d texts", self.model, len(batch))
            return news + [self._failure(text, "the model run failed") for text in batch]
        return news + self._apply(batch, vectors)

    def _drop_over(self, now: float) -> list[Progress]:
        news = []
        for text in tuple(self._waiting.values()):
            deadline = text.job.deadline
            if text.is_cancelled or (deadline is not None and deadline <= now):
                outcome = Outcome.CANCELLED if text.is_cancelled else Outcome.DEADLINE
                news.append(Progress(text.id, end=text.times.end(outcome, now)))
                del self._waiting[text.id]
        return news

    def _run(self, texts: Rows[tuple[int, ...]]) -> Array:
        started = self._clock()
        ids, lengths = pad(texts)
        inputs = {"token_ids": ids, "lengths": lengths}
        if self._has_segments:
            inputs["segment_ids"] = np.zeros_like(ids)
        vectors = self._graph.run(inputs)[self._output]
        report = RunReport("encode", len(texts), int(lengths.sum()), self._clock() - started)
        self._observer.on_run(self.model, report)
        return vectors

    def _apply(self, batch: Rows[_Text], vectors: Array) -> list[Progress]:
        now = self._clock()
        news = []
        for text, vector in zip(batch, vectors, strict=True):
            if not np.isfinite(vector).all():
                news.append(self._failure(text, "the model's output is not finite"))
                continue
            text.times.first_token = now
            # A copy: the run's memory is used again by the next run.
            end = text.times.end(Outcome.DONE, now)
            news.append(Progress(text.id, vector=vector.copy(), end=end))
        return news

    def _failure(self, text: _Text, reason: str) -> Progress:
        return Progress(text.id, end=text.times.end(Outcome.FAILED, self._clock(), reason))
