"""The worker of decoders and encoder-decoders: ``step()``: schedule → run → apply."""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Rows

import numpy as np

from server.engine import sampling
from server.engine.lifecycle import Event, Outcome, Phase
from server.engine.observer import Load, Observer, RunReport
from server.engine.runner import Capacity, Runner
from server.engine.scheduler import Chunk, Limits, schedule
from server.engine.sequence import Floats, GenerationJob, Progress, Sequence, Times
from server.engine.slots import SlotTable

Clock = Callable[[], float]
log = logging.getLogger(__name__)


class Generator:
    """Continuous batching of one model in one lane. Only the lane's thread calls it."""

    def __init__(
        self,
        model: str,
        runner: Runner,
        capacity: Capacity,
        limits: Limits,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self.model = model
        self._runner = runner
        self._capacity = capacity
        self._limits = limits
        self._clock = clock
        self._observer = observer
        self._waiting: dict[int, Sequence] = {}
        self._running: dict[int, Sequence] = {}
        self._slots = SlotTable(limits.num_slots)
        self._ended: list[int] = []
        self._news: list[Progress] = []

    def __repr__(self) -> str:
        return f"Generator({self.model}, waiting={len(self._waiting)}, {self._slots!r})"

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def load(self) -> Load:
        return Load(
            num_waiting=len(self._waiting),
            num_running=len(self._running),
            num_slots=self._limits.num_slots,
            num_cached_tokens=sum(row.num_cached_tokens for row in self._running.values()),
            cache_capacity_tokens=self._limits.num_slots * self._capacity.max_length,
        )

    def submit(self, id_: int, job: GenerationJob) -> None:
        seeded = None if job.sampling.is_greedy else np.random.default_rng(job.sampling.seed)
        self._waiting[id_] = Sequence(id_, job, Times(self._clock()), seeded)

    def cancel(self, id_: int) -> None:
        """The sequence leaves at the next step; one that ended already is no error."""
        sequence = self._waiting.get(id_) or self._running.get(id_)
        if sequence is not None:
            sequence.is_cancelled = True

    def step(self) -> list[Progress]:
        """One step. Returns what happened to each sequence, in order."""
        self._news = []
        now = self._clock()
        plan = schedule(tuple(self._waiting.values()), self._rows(), now, self._limits)
        for id_ in plan.drop:
            self._drop(id_)
        self._release_ended()
        for id_ in plan.admit:
            self._admit(id_, now)
        for batch in plan.encode:
            self._encode([self._running[id_] for id_ in batch])
        for chunks in plan.prefill:
            self._prefill(chunks)
        if plan.decode:
            decode = [self._running[id_] for id_ in plan.decode]
            self._read("decode", decode, [1] * len(decode))
        self._release_ended()
        return self._news

    def _rows(self) -> tuple[Sequence, ...]:
        return tuple(self._running[id_] for id_ in self._slots.ids)

    def _admit(self, id_: int, now: float) -> None:
        sequence = self._waiting.pop(id_)
        sequence.on(Event.ADMIT)
        sequence.times.started = now
        self._runner.cache.reset(self._slots.acquire(id_))
        self._running[id_] = sequence

    def _encode(self, rows: Rows[Sequence]) -> None:
        started = self._clock()
        try:
            self._runner.encode(rows, [self._slots.row_of(row.id) for row in rows])
        except Exception:
            self._fail(rows)
            return
        num_tokens = sum(row.num_source_tokens for row in rows)
        self._report("encode", len(rows), num_tokens, started)
        for row in rows:
            row.is_encoded = True

    def _prefill(self, chunks: Rows[Chunk]) -> None:
        rows = [self._running[chunk.id] for chunk in chunks]
        if all(row.phase != Phase.ENDED for row in rows):
            self._read("prefill", rows, [chunk.num_tokens for chunk in chunks])
            return
        # An encoder run failed: those that are left are no longer neighbours.
        for row, chunk in zip(rows, chunks, strict=True):
            if row.phase != Phase.ENDED:
                self._read("prefill", [row], [chunk.num_tokens])

    def _read(self, phase: str, rows: Rows[Sequence], sizes: Rows[int]) -> None:
        """Runs the decoder over the next tokens of neighbouring rows and applies the result."""
        slots = [self._slots.row_of(row.id) for row in rows]
        if slots != sorted(slots):
            order = sorted(range(len(rows)), key=slots.__getitem__)
            rows, sizes = [rows[i] for i in order], [sizes[i] for i in order]
        started = self._clock()
        try:
            logits = self._runner.decode(rows, min(slots), sizes)
        except Exception:
            self._fail(rows)
            return
        self._report(phase, len(rows), sum(sizes), started)
        self._apply(rows, sizes, logits)

    def _apply(self, rows: Rows[Sequence], sizes: Rows[int], logits: Floats) -> None:
        now = self._clock()
        for row, size in zip(rows, sizes, strict=True):
            row.num_cached_tokens += size
        complete = [index for index, row in enumerate(rows) if not row.num_remaining_tokens]
        if len(complete) < len(rows):
            rows, logits = [rows[index] for index in complete], logits[complete]
        if not rows:
            return
        for row, token in zip(rows, sampling.choose(logits, rows), strict=True):
            if token is None:
                self._end(row, Outcome.FAILED, now, failure="the model's output is not finite")
                continue
            if row.times.first_token is None:
                row.times.first_token = now
            outcome = row.append(token)
            if outcome is None and row.num_cached_tokens == self._capacity.max_length:
                outcome = Outcome.LENGTH
            if outcome is None:
                self._news.append(Progress(row.id, (token,)))
            else:
                self._end(row, outcome, now, (token,))

    def _drop(self, id_: int) -> None:
        sequence = self._waiting.get(id_) or self._running[id_]
        outcome = Outcome.CANCELLED if sequence.is_cancelled else Outcome.DEADLINE
        self._end(sequence, outcome, self._clock())

    def _fail(self, rows: Rows[Sequence]) -> None:
        log.exception("a run of %s failed for %d sequences", self.model, len(rows))
        for row in rows:
            self._end(row, Outcome.FAILED, self._clock(), failure="the model run failed")

    def _end(
        self,
        sequence: Sequence,
        outcome: Outcome,
        now: float,
        tokens: tuple[int, ...] = (),
        failure: str = "",
    ) -> None:
        """Ends a sequence: its caller is told, its slot is free when the step is over."""
        sequence.on(Event.END)
        end = sequence.times.end(outcome, now, failure)
        self._news.append(Progress(sequence.id, tokens, end=end))
        if self._waiting.pop(sequence.id, None) is None:
            self._ended.append(sequence.id)

    def _release_ended(self) -> None:
        """Frees the slots of what ended. Rows move only here, never between the runs of a plan."""
        for id_ in self._ended:
            last = self._running[self._slots.ids[-1]]
            moves = self._slots.release(id_, keep_last=last.num_remaining_tokens > 1)
            del self._running[id_]
            for move in moves:
                moved = self._running[self._slots.ids[move.target]]
                self._runner.cache.move(move, moved.num_cached_tokens, moved.num_source_tokens)
        self._ended.clear()

    def _report(self, phase: str, num_rows: int, num_tokens: int, started: float) -> None:
        report = RunReport(phase, num_rows, num_tokens, self._clock() - started)
        self._observer.on_run(self.model, report)
