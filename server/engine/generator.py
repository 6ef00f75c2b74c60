"""The worker of decoders and encoder-decoders: ``step()``: schedule → run → apply."""

import itertools
import logging
from collections.abc import Callable
from collections.abc import Sequence as Rows

import numpy as np

from server.engine import sampling
from server.engine.adjust import ConstraintError
from server.engine.branching import Branching
from server.engine.group import Group
from server.engine.lifecycle import Event, Outcome, Phase
from server.engine.observer import Load, Observer, RunReport
from server.engine.rows import RowStore
from server.engine.runner import Capacity, Runner
from server.engine.scheduler import Chunk, Limits, overdue, schedule
from server.engine.sequence import Floats, GenerationJob, Progress, Sequence
from server.engine.waiting import WaitingQueue

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
        self._groups: dict[int, Group] = {}
        self._group_of: dict[int, Group] = {}  # by sequence
        self._waiting = WaitingQueue()
        self._rows = RowStore(runner.cache, capacity.num_slots)
        self._ids = itertools.count()
        self._ended: list[Sequence] = []
        # Groups whose rows branch at the end of the step, with the logits of each row.
        self._branching: dict[int, dict[int, Floats]] = {}
        self._news: list[Progress] = []

    def __repr__(self) -> str:
        return f"Generator({self.model}, waiting={len(self._waiting)}, {self._rows!r})"

    @property
    def has_work(self) -> bool:
        return bool(self._groups)

    @property
    def load(self) -> Load:
        running = self._rows.running
        return Load(
            num_waiting=len(self._waiting),
            num_running=len(running),
            num_slots=self._limits.num_slots,
            num_cached_tokens=sum(row.num_cached_tokens for row in running),
            cache_capacity_tokens=self._limits.num_slots * self._capacity.max_length,
        )

    def submit(self, id_: int, job: GenerationJob) -> None:
        now = self._clock()
        if job.num_rows > self._limits.num_slots:
            raise ValueError(f"{job.num_rows} rows wanted of {self._limits.num_slots}")
        row = Sequence.first_of(next(self._ids), job)
        group = Group.of(id_, row, now)
        self._groups[id_] = self._group_of[row.id] = group
        self._waiting.add(row, now)

    def cancel(self, id_: int, output: int | None = None) -> None:
        """The job, or one output of it, leaves at the next step.

        One that ended already is no error. An output that depends on others (of a beam
        search) goes on with them.
        """
        group = self._groups.get(id_)
        if group is None:
            return
        for row in group.rows:
            if output is None or (group.is_plain and row.output == output):
                row.is_cancelled = True

    def step(self) -> list[Progress]:
        """One step. Returns what happened to each job, in order."""
        self._news = []
        now = self._clock()
        for id_ in overdue((*self._waiting.items, *self._rows.running), now):
            self._drop(self._group_of[id_], id_, now)
        self._release_ended()
        waiting = self._waiting.items
        self._rows.match(waiting)
        plan = schedule(waiting, self._rows.running, self._limits)
        for id_ in plan.admit:
            self._admit(self._waiting.remove(id_), now)
        self._rows.unmatch(self._waiting.items)
        for batch in plan.encode:
            self._encode([self._rows.get(id_) for id_ in batch])
        for chunks in plan.prefill:
            self._prefill(chunks)
        if plan.decode:
            decode = [self._rows.get(id_) for id_ in plan.decode]
            self._read("decode", decode, [1] * len(decode))
        for id_, logits in list(self._branching.items()):
            self._branch(self._groups[id_], logits)
        self._branching.clear()
        self._release_ended()
        return self._news

    def _admit(self, row: Sequence, now: float) -> None:
        row.on(Event.ADMIT)
        group = self._group_of[row.id]
        group.times.started = now
        self._rows.admit(row)
        group.num_reused_tokens = row.num_cached_tokens

    def _encode(self, rows: Rows[Sequence]) -> None:
        started = self._clock()
        try:
            self._runner.encode(rows, [self._rows.slot_of(row) for row in rows])
        except Exception:
            self._fail(rows)
            return
        num_tokens = sum(row.num_source_tokens for row in rows)
        self._report("encode", len(rows), num_tokens, started)
        for row in rows:
            row.is_encoded = True

    def _prefill(self, chunks: Rows[Chunk]) -> None:
        rows = [self._rows.get(chunk.id) for chunk in chunks]
        sizes = [chunk.num_tokens for chunk in chunks]
        alone = any(row.phase == Phase.ENDED for row in rows) or any(
            row.job.reporting.prompt_logprobs is not None for row in rows
        )
        if not alone:
            self._read("prefill", rows, sizes)
            return
        # An encoder run failed, so that those that are left are no longer neighbours; or
        # logits are wanted for all positions.
        for row, size in zip(rows, sizes, strict=True):
            if row.phase != Phase.ENDED:
                self._read("prefill", [row], [size])

    def _read(self, phase: str, rows: Rows[Sequence], sizes: Rows[int]) -> None:
        """Runs the decoder over the next tokens of neighbouring rows and applies the result."""
        slots = [self._rows.slot_of(row) for row in rows]
        if slots != sorted(slots):
            order = sorted(range(len(rows)), key=slots.__getitem__)
            rows, sizes = [rows[i] for i in order], [sizes[i] for i in order]
        started = self._clock()
        try:
            if rows[0].job.reporting.prompt_logprobs is not None and phase == "prefill":
                logits = self._read_scored(rows[0], min(slots), sizes[0])
            else:
                logits = self._runner.decode(rows, min(slots), sizes)
        except Exception:
            self._fail(rows)
            return
        self._report(phase, len(rows), sum(sizes), started)
        self._apply(rows, sizes, logits)

    def _read_scored(self, row: Sequence, slot: int, size: int) -> Floats:
        """Reads a prompt's next tokens and notes how likely each was after those before it."""
        group, num_top = self._group_of[row.id], row.job.reporting.prompt_logprobs or 0
        index = row.num_cached_tokens
        for logits in self._runner.decode_all(row, slot, size):
            for after in logits:
                index += 1
                if index < len(row.job.prompt):
                    token = sampling.token_logprob(after, row.tokens[index], num_top)
                    group.prompt_logprobs.append(token)
        return logits[-1:]

    def _apply(self, rows: Rows[Sequence], sizes: Rows[int], logits: Floats) -> None:
        """Notes what was read, and chooses the next token of each row that knows no more."""
        now = self._clock()
        plain: list[int] = []
        for index, (row, size) in enumerate(zip(rows, sizes, strict=True)):
            row.num_cached_tokens += size
            if row.num_remaining_tokens:
                continue
            group = self._group_of[row.id]
            if not row.job.max_new_tokens:
                group.times.first_token = now
                self._end(row, Outcome.LENGTH, now)
            elif group.is_plain:
                plain.append(index)
            else:
                self._branching.setdefault(group.id, {})[row.id] = logits[index].copy()
        if len(plain) == len(rows):
            self._choose(rows, logits, now)
        elif plain:
            self._choose([rows[index] for index in plain], logits[plain], now)

    def _choose(self, rows: Rows[Sequence], logits: Floats, now: float) -> None:
        """Gives each row its next token, from ``logits [rows, vocabulary]``."""
        best = sampling.greedy(logits)
        for row, token, row_logits in zip(rows, best, logits, strict=True):
            if token is None:
                self._end(row, Outcome.FAILED, now, failure="the model's output is not finite")
                continue
            try:
                self._take(row, _chosen(row, token, row_logits), row_logits, now)
            except ConstraintError as error:
                self._end(row, Outcome.UNSATISFIABLE, now, failure=str(error))

    def _take(self, row: Sequence, token: int, logits: Floats, now: float) -> None:
        group = self._group_of[row.id]
        if group.times.first_token is None:
            group.times.first_token = now
        outcome = row.append(token)
        if outcome is None and row.num_cached_tokens == self._capacity.max_length:
            outcome = Outcome.LENGTH
        logprobs: tuple[sampling.TokenLogprob, ...] = ()
        num_top = row.job.reporting.top_logprobs
        if num_top is not None:
            logprobs = (sampling.token_logprob(logits, token, num_top),)
        if outcome is None:
            news = Progress(group.id, (token,), output=row.output, logprobs=logprobs)
            self._news.append(news)
        else:
            self._end(row, outcome, now, tokens=(token,), logprobs=logprobs)

    def _branch(self, group: Group, logits: dict[int, Floats]) -> None:
        """The rows of a job become the next ones, now that all runs of the step are over."""
        now = self._clock()
        table = np.stack([logits[row.id] for row in group.rows])
        if not np.isfinite(table.max(-1)).all() or np.isnan(table).any():
            self._end_all(group, Outcome.FAILED, "the model's output is not finite")
            return
        if group.times.first_token is None:
            group.times.first_token = now
        branching, before = Branching(group, self._rows, self._ids), list(group.rows)
        try:
            if group.search is None:
                tokens = branching.split(table[0])
            else:
                self._news += branching.search(table)
        except ConstraintError as error:
            self._end_all(group, Outcome.UNSATISFIABLE, str(error))
            return
        for row in group.rows:
            self._group_of[row.id] = group
        if group.search is None:
            self._begin(group, tokens, table[0], now)
        elif group.search.is_over:
            self._ended += group.rows
            self._news += group.end_search(now)
            del self._groups[group.id]
        else:
            self._ended += [row for row in before if row not in group.rows]

    def _begin(self, group: Group, tokens: list[int] | None, logits: Floats, now: float) -> None:
        """Gives the rows of a job that split their first token."""
        rows = list(group.rows)
        if tokens is None:
            self._choose(rows, np.broadcast_to(logits, (len(rows), len(logits))), now)
            return
        for row, token in zip(rows, tokens, strict=True):
            self._take(row, token, logits, now)

    def _drop(self, group: Group, id_: int, now: float) -> None:
        """Ends what is overdue: a plain row alone, any other with its whole job."""
        row = next((row for row in group.rows if row.id == id_), None)
        if row is None:  # gone already, with another row of its job
            return
        outcome = Outcome.CANCELLED if row.is_cancelled else Outcome.DEADLINE
        if group.is_plain:
            self._end(row, outcome, now)
        else:
            self._end_all(group, outcome)

    def _fail(self, rows: Rows[Sequence]) -> None:
        log.exception("a run of %s failed for %d sequences", self.model, len(rows))
        for group in {self._group_of[row.id].id: self._group_of[row.id] for row in rows}.values():
            self._end_all(group, Outcome.FAILED, "the model run failed")

    def _end(
        self,
        row: Sequence,
        outcome: Outcome,
        now: float,
        *,
        tokens: tuple[int, ...] = (),
        logprobs: tuple[sampling.TokenLogprob, ...] = (),
        failure: str = "",
    ) -> None:
        """Ends a plain row: its caller is told, its slot is free when the step is over."""
        group = self._group_of[row.id]
        progress = group.end(row, outcome, now, tokens=tokens, logprobs=logprobs, failure=failure)
        self._news.append(progress)
        self._ended.append(row)
        if progress.is_last:
            del self._groups[group.id]

    def _end_all(self, group: Group, outcome: Outcome, failure: str = "") -> None:
        self._ended += group.rows
        self._news += group.end_all(outcome, self._clock(), failure)
        del self._groups[group.id]
        self._branching.pop(group.id, None)

    def _release_ended(self) -> None:
        """Frees the slots of what ended. Rows move only here, never between the runs of a plan."""
        for row in self._ended:
            del self._group_of[row.id]
            if not self._waiting.discard(row.id):
                self._rows.release(row)
        self._ended.clear()

    def _report(self, phase: str, num_rows: int, num_tokens: int, started: float) -> None:
        report = RunReport(phase, num_rows, num_tokens, self._clock() - started)
        self._observer.on_run(self.model, report)


def _chosen(row: Sequence, best: int, logits: Floats) -> int:
    """The next token of a row whose likeliest is ``best``."""
    if row.is_plainly_greedy:
        return best
    adjusted = logits.copy()
    row.adjust(adjusted)
    if adjusted.max() == -np.inf:
        raise ConstraintError("no token is allowed")
    if row.generator is None:
        return int(adjusted.argmax())
    return sampling.sample(adjusted, row.job.sampling, row.generator)
