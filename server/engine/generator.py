"""The worker of decoders and encoder-decoders: ``step()``: schedule → run → apply."""

import logging
from collections.abc import Callable, Sequence

import numpy as np

from server.engine.cache.row_store import SlotStore
from server.engine.cache.slot_cache import Capacity
from server.engine.decoding import sampling
from server.engine.decoding.logits import HostLogits, Logits
from server.engine.decoding.options import AttentionSelection
from server.engine.gpu.device_sampler import DeviceSampler
from server.engine.isolation import run_with_isolation
from server.engine.observer import Load, Observer, RunReport
from server.engine.outputs import NOT_FINITE, Outputs
from server.engine.requests.lifecycle import Event, Phase
from server.engine.requests.sequence import DecodingSequence, GenerationJob, JobUpdate
from server.engine.requests.waiting_queue import WaitingQueue
from server.engine.runner import ModelRunner
from server.engine.scheduler import Chunk, Limits, Plan, overdue, schedule

log = logging.getLogger(__name__)

Clock = Callable[[], float]


class Generator:
    """Continuous batching of one model in one lane. Only the lane's thread calls it."""

    def __init__(
        self,
        model: str,
        runner: ModelRunner,
        capacity: Capacity,
        limits: Limits,
        clock: Clock,
        observer: Observer,
        chooser: DeviceSampler | None = None,
    ) -> None:
        self.model = model
        self._runner = runner
        self._capacity = capacity
        self._limits = limits
        self._clock = clock
        self._observer = observer
        self._num_cuda_graphs = self._cuda_graph_bytes = 0
        self._waiting = WaitingQueue()
        self._rows = SlotStore(runner.cache, capacity.num_slots)
        self._outputs = Outputs(self._rows, capacity.max_length, chooser)

    def __repr__(self) -> str:
        return f"Generator({self.model}, waiting={len(self._waiting)}, {self._rows!r})"

    @property
    def has_work(self) -> bool:
        return not self._outputs.is_empty

    @property
    def load(self) -> Load:
        running = self._rows.running
        return Load(
            num_waiting=len(self._waiting),
            num_running=len(running),
            num_slots=self._limits.num_slots,
            num_cached_tokens=sum(row.num_cached_tokens for row in running),
            cache_capacity_tokens=self._limits.num_slots * self._capacity.max_length,
            num_cuda_graphs=self._num_cuda_graphs,
            cuda_graph_bytes=self._cuda_graph_bytes,
        )

    def prepare(self) -> None:
        """Records the sizes of runs, where that is wanted and the device can."""
        if self._runner.buckets is None:
            return
        before = self._runner.cache.free_bytes
        try:
            self._num_cuda_graphs = self._runner.record()
        except Exception:
            log.exception("%s: no run could be recorded: its runs have any size", self.model)
            self._runner.buckets = None
            return
        after = self._runner.cache.free_bytes
        if before is not None and after is not None:
            self._cuda_graph_bytes = max(before - after, 0)
        log.info(
            "%s: of %d sizes of decode runs, %d are recorded, in %d MiB",
            *(self.model, len(self._runner.buckets), self._num_cuda_graphs),
            self._cuda_graph_bytes >> 20,
        )

    def submit(self, id_: int, job: GenerationJob) -> None:
        if job.num_rows > self._limits.num_slots:
            raise ValueError(f"{job.num_rows} rows wanted of {self._limits.num_slots}")
        now = self._clock()
        self._waiting.add(self._outputs.open(id_, job, now), now)

    def cancel(self, id_: int, output: int | None = None) -> None:
        """The job, or one output of it, leaves at the next step.

        One that ended already is no error. An output that depends on others (of a beam
        search) goes on with them.
        """
        self._outputs.cancel(id_, output)

    def step(self) -> list[JobUpdate]:
        """One step. Returns what happened to each job, in order."""
        self._run(self._schedule())
        self._outputs.branch(self._clock())
        self._release_ended()
        return self._outputs.drain_updates()

    def _schedule(self) -> Plan:
        """What to run, with rows given to what it admits."""
        now = self._clock()
        for id_ in overdue((*self._waiting.items, *self._rows.running), now):
            self._outputs.drop(id_, now)
        self._release_ended()
        self._rows.match(self._waiting.items)
        plan = schedule(self._waiting.items, self._rows.running, self._limits)
        for id_ in plan.admit:
            self._admit(self._waiting.remove(id_), now)
        self._rows.unmatch(self._waiting.items)
        return plan

    def _admit(self, row: DecodingSequence, now: float) -> None:
        row.on(Event.ADMIT)
        group = self._outputs.of(row)
        group.times.started = now
        self._rows.admit(row)
        group.num_reused_tokens = row.num_cached_tokens

    def _run(self, plan: Plan) -> None:
        for batch in plan.encode:
            self._encode([self._rows.get(id_) for id_ in batch])
        for chunks in plan.prefill:
            self._prefill(chunks)
        if plan.decode:
            self._decode([self._rows.get(id_) for id_ in plan.decode])

    def _decode(self, rows: Sequence[DecodingSequence]) -> None:
        if all(row.job.logprob_options.attention is None for row in rows):
            self._read("decode", rows, [1] * len(rows))
            return
        # A prompt of which one token is left runs with these, also one that is read for attention.
        for row in rows:
            is_prompt = row.job.logprob_options.attention is not None
            self._read("prefill" if is_prompt else "decode", [row], [1])

    def _encode(self, rows: Sequence[DecodingSequence]) -> None:
        def run(rows: Sequence[DecodingSequence]) -> Sequence[DecodingSequence]:
            started = self._clock()
            self._runner.encode(rows, [self._rows.slot_of(row) for row in rows])
            num_tokens = sum(row.num_source_tokens for row in rows)
            self._report("encode", len(rows), num_tokens, started)
            return rows

        for attempt in run_with_isolation(rows, run, f"encoding by {self.model}", _is_open):
            if attempt.result is None:
                self._outputs.fail(attempt.items, self._clock())
            for row in attempt.result or ():
                row.is_encoded = True

    def _prefill(self, chunks: Sequence[Chunk]) -> None:
        rows = [self._rows.get(chunk.id) for chunk in chunks]
        sizes = [chunk.num_tokens for chunk in chunks]
        alone = any(not _is_open(row) or row.job.logprob_options.reads_alone for row in rows)
        if not alone:
            self._read("prefill", rows, sizes)
            return
        # An encoder run failed, so that those that are left are no longer neighbours; or
        # logits are wanted for all positions.
        for row, size in zip(rows, sizes, strict=True):
            if _is_open(row):
                self._read("prefill", [row], [size])

    def _read(self, phase: str, rows: Sequence[DecodingSequence], sizes: Sequence[int]) -> None:
        """Runs the decoder over the next tokens of neighbouring rows and applies the result."""
        reads = sorted(zip(rows, sizes, strict=True), key=lambda read: self._rows.slot_of(read[0]))

        def run(reads: Sequence[tuple[DecodingSequence, int]]) -> Logits:
            started = self._clock()
            logits = self._logits(phase, [row for row, _ in reads], [size for _, size in reads])
            self._report(phase, len(reads), sum(size for _, size in reads), started)
            return logits

        label = f"a {phase} run of {self.model}"
        for attempt in run_with_isolation(reads, run, label, lambda read: _is_open(read[0])):
            read = [row for row, _ in attempt.items]
            if attempt.result is None:
                self._outputs.fail(read, self._clock())
                continue
            now = self._clock()
            self._outputs.apply(read, [size for _, size in attempt.items], attempt.result, now)

    def _logits(self, phase: str, rows: Sequence[DecodingSequence], sizes: Sequence[int]) -> Logits:
        """After the next tokens of each row: ``[rows, vocabulary]``. ``rows`` in order of slots."""
        slot, logprob_options = self._rows.slot_of(rows[0]), rows[0].job.logprob_options
        if phase == "prefill" and logprob_options.attention is not None:
            return self._read_attention(rows[0], slot, sizes[0], logprob_options.attention)
        if phase == "prefill" and logprob_options.prompt_logprobs is not None:
            return self._read_scored(rows[0], slot, sizes[0])
        if phase == "decode" and slot == 0 and self._runner.buckets is not None:
            count = self._runner.buckets.rows_for(len(rows)) - len(rows)
            padding = self._rows.behind(len(rows), count, self._capacity.max_length)
            if padding is not None:
                return self._runner.decode_padded(rows, padding)
        return self._runner.decode(rows, slot, sizes)

    def _read_scored(self, row: DecodingSequence, slot: int, size: int) -> Logits:
        """Reads a prompt's next tokens and notes how likely each was after those before it."""
        group, num_top = self._outputs.of(row), row.job.logprob_options.prompt_logprobs or 0
        index = row.num_cached_tokens
        for logits in self._runner.decode_all(row, slot, size):
            for after in logits:
                if not np.isfinite(after.max()):
                    raise ValueError(NOT_FINITE)
                index += 1
                if index < len(row.job.prompt):
                    token = sampling.token_logprob(after, row.tokens[index], num_top)
                    group.prompt_logprobs.append(token)
        return HostLogits(logits[-1:])

    def _read_attention(
        self, row: DecodingSequence, slot: int, size: int, wanted: AttentionSelection
    ) -> Logits:
        """Reads a prompt's next tokens and notes their attention. Nothing is generated after."""
        attention = self._outputs.of(row).attention
        attention.extend(self._runner.decode_attention(row, slot, size, wanted))
        return HostLogits(np.zeros((1, 1), np.float32))

    def _release_ended(self) -> None:
        """Frees the slots of what ended. Rows move only here."""
        for row in self._outputs.take_ended():
            if not self._waiting.discard(row.id):
                self._rows.release(row)

    def _report(self, phase: str, num_rows: int, num_tokens: int, started: float) -> None:
        report = RunReport(phase, num_rows, num_tokens, self._clock() - started)
        self._observer.on_run(self.model, report)


def _is_open(row: DecodingSequence) -> bool:
    return row.phase != Phase.ENDED
