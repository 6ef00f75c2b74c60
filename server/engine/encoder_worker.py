"""The worker of encoders: dynamic batches by padded cost. Begin at :meth:`EncoderWorker.step`."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.engine.cache.idle_rows import IdleLimits
from server.engine.clock import Clock
from server.engine.encoder_batch import BatchLimits, form_batch
from server.engine.encoder_queue import EncoderQueue, QueuedText
from server.engine.encoder_runner import EncoderRunner, Outputs, PendingOutputs
from server.engine.failures import NOT_FINITE, run_with_isolation
from server.engine.lane import never
from server.engine.observer import Observer, RunReport, WorkerStats
from server.engine.recording import RecordedRuns, record_runs
from server.engine.requests.job import EncodingJob
from server.engine.requests.lifecycle import Ending, Event, Outcome, ending_event
from server.engine.requests.update import EncoderOutput, JobTimes, JobUpdate
from server.engine.watchdog import Progress

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """A scheduled batch. ``pending`` waits for its run; None if the run is not started yet."""

    texts: Sequence[QueuedText]
    started: float
    pending: PendingOutputs | None


class EncoderWorker:
    """Batches one encoder's texts dynamically, in one lane. Only the lane's thread calls it.

    If enough texts wait, the host starts the next batch while the device still encodes one, and
    then handles the results of the first.

    Args:
        model: the model's name, for reports.
        runner: runs the model's graphs.
        limits: the limits of a batch.
        clock: returns seconds.
        observer: receives a report of every run.
    """

    def __init__(
        self,
        model: str,
        runner: EncoderRunner,
        limits: BatchLimits,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self.model, self.progress = model, Progress(model)
        self._runner = runner
        self._limits = limits
        self._clock = clock
        self._observer = observer
        self._recorded = RecordedRuns()
        self._waiting = EncoderQueue()
        self._running: _Run | None = None  # the run that the device continues between steps
        self._last_end = 0.0  # when the last run ended, in seconds
        self._updates: list[JobUpdate] = []

    def __repr__(self) -> str:
        return f"EncoderWorker({self.model}, waiting={len(self._waiting)})"

    @property
    def has_work(self) -> bool:
        return len(self._waiting) > 0 or self._running is not None

    @property
    def stats(self) -> WorkerStats:
        return WorkerStats(
            num_waiting=len(self._waiting),
            num_running=0 if self._running is None else len(self._running.texts),
            num_cuda_graphs=self._recorded.num_graphs,
            cuda_graph_bytes=self._recorded.num_bytes,
        )

    def prepare(self) -> None:
        """Records runs of fixed sizes, if there are buckets and the device supports it."""
        self._recorded = record_runs(self._runner, self.model)

    def release_memory(self, limits: IdleLimits) -> bool:
        """Releases nothing: an encoder has no cache."""
        del limits
        return False

    def submit(self, id_: int, job: EncodingJob) -> None:
        self._waiting.add(QueuedText(id_, job, JobTimes(self._clock())))

    def cancel(self, id_: int, output: int | None = None) -> None:
        """Marks a text to end in the next step; ignores a text that runs or has ended."""
        del output
        self._waiting.cancel(id_)

    def step(self, may_continue: Callable[[], bool] = never) -> list[JobUpdate]:
        """Schedules, runs and applies one batch. Returns an update for each text that ended.

        If half of a full batch waits, the next step applies a batch that the device runs, after
        starting another one. Ignores ``may_continue``.
        """
        del may_continue
        before, self._running = self._running, None
        batch = self._schedule(self._clock())
        run = self._start(batch) if batch else None
        if before is not None:
            self._end_run(before)
        if run is not None and run.pending is not None and self._has_next_batch:
            self._running = run
        elif run is not None:
            self._end_run(run)
        updates, self._updates = self._updates, []
        return updates

    @property
    def _has_next_batch(self) -> bool:
        """Whether enough texts wait to start another run before this one is applied."""
        return self._waiting.num_tokens >= self._limits.max_padded_tokens // 2

    def _schedule(self, now: float) -> list[QueuedText]:
        """Ends texts that are cancelled or past their deadline, and chooses the next batch."""
        for text, outcome in self._waiting.due(now):
            self._waiting.remove(text)
            self._end(text, Ending(outcome), now)
        texts = self._waiting.next_candidates()
        if not texts:
            return []
        batch = [texts[index] for index in self._choose(texts)]
        for text in batch:
            self._waiting.remove(text)
            text.on(Event.ENCODE)
            text.times.started = now
        return batch

    def _choose(self, texts: Sequence[QueuedText]) -> list[int]:
        """Returns the indices of the texts of the next batch; 0 comes first."""
        buckets = self._runner.buckets
        lengths = [text.job.num_tokens for text in texts]
        if buckets is not None:
            lengths = [buckets.tokens_for(length) for length in lengths]
        # The caller of several texts waits for all of them, so halving its batch gains nothing.
        leaves_half = len(texts) > texts[0].job.num_texts
        chosen = form_batch(lengths, self._limits, leaves_half=leaves_half)
        if buckets is None:
            return chosen
        longest = max(lengths[index] for index in chosen)
        return chosen[: buckets.num_together(len(chosen), longest)]

    def _start(self, batch: Sequence[QueuedText]) -> _Run:
        """Starts a recorded run of a batch, if one fits it."""
        started = self._clock()
        try:
            pending = self._runner.start([text.job for text in batch])
        except Exception:
            log.warning("%s: a run could not be started", self.model, exc_info=True)
            pending = None
        return _Run(batch, started, pending)

    def _end_run(self, run: _Run) -> None:
        """Waits for a run, and ends its texts."""

        def outputs_of(texts: Sequence[QueuedText]) -> Outputs:
            return self._outputs(run, texts)

        for ran in run_with_isolation(run.texts, outputs_of, f"a run of {self.model}"):
            self._apply(*ran)

    def _outputs(self, run: _Run, texts: Sequence[QueuedText]) -> Outputs:
        """Returns the outputs of a run; runs ``texts`` again if they are only some of its texts."""
        jobs = [text.job for text in texts]
        self.progress.begin(len(jobs) * max(job.num_tokens for job in jobs))
        if run.pending is not None and texts is run.texts:
            started = max(run.started, self._last_end)
            outputs = run.pending()
        else:
            started = self._clock()
            outputs = self._runner.run(jobs)
        self._last_end = self._clock()
        seconds = self._last_end - started
        num_tokens = sum(job.num_tokens for job in jobs)
        self._observer.on_run(self.model, RunReport("encode", len(jobs), num_tokens, (seconds,)))
        return outputs

    def _end(
        self, text: QueuedText, ending: Ending, now: float, output: EncoderOutput | None = None
    ) -> None:
        """Ends a text. No other method does."""
        text.on(ending_event(ending.outcome))
        completion = text.times.complete(ending, now)
        self._updates.append(JobUpdate(text.id, completion=completion, encoded=output))

    def _apply(self, texts: Sequence[QueuedText], outputs: Outputs | Ending) -> None:
        """Ends each text of a run."""
        now = self._clock()
        if isinstance(outputs, Ending):
            for text in texts:
                self._end(text, outputs, now)
            return
        for text, output in zip(texts, outputs, strict=True):
            if output is None:
                self._end(text, NOT_FINITE, now)
            else:
                text.times.first_token = now
                self._end(text, Ending(Outcome.DONE), now, output)
