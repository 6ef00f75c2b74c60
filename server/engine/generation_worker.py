"""The worker of decoders and encoder-decoders. Begin at :meth:`GenerationWorker.step`."""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from server.engine.cache.idle_rows import IdleLimits
from server.engine.cache.slot_store import SlotStore
from server.engine.cache.slot_tensors import Capacity
from server.engine.decoding.logits import Logits
from server.engine.failures import NOT_FINITE, RUN_FAILED, run_with_isolation
from server.engine.forking import Forking
from server.engine.gpu.device_sampler import DeviceSampler
from server.engine.job_table import JobTable
from server.engine.model_runner import ModelRunner
from server.engine.observer import Observer, RunReport, WorkerStats
from server.engine.prefill_alone import prefill_alone
from server.engine.requests.job import GenerationJob
from server.engine.requests.lifecycle import Event, Outcome, Phase
from server.engine.requests.sequence import DecodingSequence
from server.engine.requests.update import JobUpdate
from server.engine.requests.waiting_queue import WaitingQueue
from server.engine.scheduler import Plan, PromptChunk, StepLimits, schedule, sequences_to_end
from server.engine.token_selector import TokenSelector

log = logging.getLogger(__name__)

Clock = Callable[[], float]


class Run(NamedTuple):
    """A run of the decoder over the next ``sizes[i]`` tokens of each sequence.

    ``logits [sequences, vocabulary]`` are valid until the next run; None if this one failed.
    """

    sequences: Sequence[DecodingSequence]
    sizes: Sequence[int]
    logits: Logits | None


class GenerationWorker:
    """Continuous batching of one model in one lane. Only the lane's thread calls it.

    Args:
        model: the model's name, for reports.
        runner: runs the model's graphs.
        capacity: of the runner's cache.
        limits: of a step.
        clock: returns seconds.
        observer: receives a report of every run.
        device_sampler: selects tokens on the device; None selects all on the host.
    """

    def __init__(
        self,
        model: str,
        runner: ModelRunner,
        capacity: Capacity,
        limits: StepLimits,
        clock: Clock,
        observer: Observer,
        device_sampler: DeviceSampler | None = None,
    ) -> None:
        self.model, self.progress = model, runner.progress
        self._runner, self._clock, self._observer = runner, clock, observer
        self._capacity, self._limits = capacity, limits
        self._num_cuda_graphs = self._cuda_graph_bytes = self._steps_since_encode = 0
        self._waiting = WaitingQueue()
        self._slots = SlotStore(runner.cache, capacity)
        self._jobs = JobTable(self._slots)
        self._selector = TokenSelector(capacity.max_length, device_sampler)
        self._forking = Forking(self._jobs, self._slots, self._selector)

    def __repr__(self) -> str:
        return f"GenerationWorker({self.model}, waiting={len(self._waiting)}, {self._slots!r})"

    @property
    def has_work(self) -> bool:
        return not self._jobs.is_empty

    @property
    def stats(self) -> WorkerStats:
        running = self._slots.running
        return WorkerStats(
            num_waiting=len(self._waiting),
            num_running=len(running),
            num_slots=self._limits.num_slots,
            num_cached_tokens=sum(sequence.num_cached_tokens for sequence in running),
            cache_capacity_tokens=self._limits.num_slots * self._capacity.max_length,
            num_cuda_graphs=self._num_cuda_graphs,
            cuda_graph_bytes=self._cuda_graph_bytes,
        )

    def prepare(self) -> None:
        """Records decode runs of fixed sizes, if there are buckets and the device supports it."""
        if self._runner.buckets is None:
            return
        before = self._runner.cache.free_bytes
        try:
            self._num_cuda_graphs = self._runner.record()
        except Exception:
            log.exception("%s: recording decode runs failed; they are not padded", self.model)
            self._runner.buckets = None
            return
        after = self._runner.cache.free_bytes
        if before is not None and after is not None:
            self._cuda_graph_bytes = max(before - after, 0)
        counts = (self._num_cuda_graphs, len(self._runner.buckets), self._cuda_graph_bytes >> 20)
        log.info("%s: %d of %d sizes of decode runs are recorded, in %d MiB", self.model, *counts)

    def submit(self, id_: int, job: GenerationJob) -> None:
        """Queues a job. Raises ``ValueError`` if it needs more slots than there are."""
        needed, num_slots = job.num_sequences, self._limits.num_slots
        if needed > num_slots:
            raise ValueError(f"the job needs {needed} slots, there are {num_slots}")
        now = self._clock()
        self._waiting.add(self._jobs.open(id_, job, now), now)

    def cancel(self, id_: int, output: int | None = None) -> None:
        """Marks a job, or one output of it, to end in the next step; ignores a job that has ended.

        Outputs that share sequences, as in a beam search, are not cancelled alone.
        """
        self._jobs.cancel(id_, output)

    def step(self) -> list[JobUpdate]:
        """Schedules, runs and applies one step. Returns the updates of all jobs, in order."""
        for run in self._run(self._schedule()):
            self._apply(run)
        if self._forking.pending:
            self._forking.run(self._clock())
        self._release_ended()
        return self._jobs.drain_updates()

    def release_memory(self, limits: IdleLimits) -> bool:
        """Gives memory of one idle slot back. Returns whether there may be more."""
        return self._slots.release_idle(limits, self._clock())

    def check(self) -> None:
        """Checks that every slot, token, sequence and job is accounted for. For tests.

        Raises:
            RuntimeError: one is lost or counted twice.
        """
        self._slots.check()
        self._jobs.check([*self._waiting.items, *self._slots.running])

    def _schedule(self) -> Plan:
        """Plans the step and gives slots to the sequences that it admits."""
        now = self._clock()
        for id_ in sequences_to_end(chain(self._waiting.items, self._slots.running), now):
            self._jobs.end_early(id_, now)
        self._release_ended()
        self._steps_since_encode += 1
        waiting = self._waiting.items
        if not waiting:
            return schedule(waiting, self._slots.running, self._limits)
        held = self._slots.match_prefixes(waiting)
        plan = schedule(waiting, self._slots.running, self._limits, held, self._steps_since_encode)
        if plan.encode:
            self._steps_since_encode = 0
        for id_ in plan.admit:
            self._admit(self._waiting.admit(id_), now)
        self._slots.discard_matches(self._waiting.items)
        return plan

    def _admit(self, sequence: DecodingSequence, now: float) -> None:
        sequence.on(Event.ENCODE if sequence.num_source_tokens else Event.PREFILL)
        group = self._jobs.group_of(sequence)
        group.times.started = now
        self._slots.admit(sequence)
        group.num_reused_tokens = sequence.num_cached_tokens

    def _run(self, plan: Plan) -> Iterator[Run]:
        """Runs the plan. Each run starts after the caller has applied the previous one."""
        for batch in plan.encode:
            self._encode([self._slots.get(id_) for id_ in batch])
        for chunks in plan.prefill:
            yield from self._prefill(chunks)
        if plan.decode:
            yield from self._decode([self._slots.get(id_) for id_ in plan.decode])

    def _apply(self, run: Run) -> None:
        """Counts the run's tokens as cached, and selects tokens for fully cached sequences."""
        now = self._clock()
        if run.logits is None:
            self._fail(run.sequences, RUN_FAILED, now)
            return
        selecting: list[int] = []
        prefilling: list[int] = []
        for index, sequence in enumerate(run.sequences):
            sequence.num_cached_tokens += run.sizes[index]
            group = self._jobs.group_of(sequence)
            if sequence.num_remaining_tokens:
                prefilling.append(index)
            elif not sequence.job.max_new_tokens:
                group.times.first_token = now
                self._jobs.end(sequence, Outcome.LENGTH, now)
            elif group.is_independent:
                selecting.append(index)
            else:
                self._forking.add(group, sequence, run.logits.row(index))
        if prefilling:
            failing = self._selector.find_non_finite(prefilling, run.logits)
            self._fail([run.sequences[index] for index in failing], NOT_FINITE, now)
        if selecting:
            sequences = [run.sequences[index] for index in selecting]
            for next_token in self._selector.select(sequences, selecting, run.logits):
                self._jobs.record(next_token, now)

    def _fail(self, sequences: Sequence[DecodingSequence], failure: str, now: float) -> None:
        for sequence in filter(_is_live, sequences):  # one may end others of its job
            self._jobs.end(sequence, Outcome.FAILED, now, failure)

    def _encode(self, sequences: Sequence[DecodingSequence]) -> None:
        def encode(batch: Sequence[DecodingSequence]) -> bool:
            started = self._clock()
            self._runner.encode(batch, [self._slots.slot_of(sequence) for sequence in batch])
            num_tokens = sum(sequence.num_source_tokens for sequence in batch)
            self._report("encode", len(batch), num_tokens, started)
            return True

        label = f"encoding by {self.model}"
        for batch, is_encoded in run_with_isolation(sequences, encode, label, _is_live):
            if is_encoded:
                for sequence in batch:
                    sequence.on(Event.PREFILL)
            else:
                self._fail(batch, RUN_FAILED, self._clock())

    def _prefill(self, chunks: Sequence[PromptChunk]) -> Iterator[Run]:
        sequences = [self._slots.get(chunk.id) for chunk in chunks]
        sizes = [chunk.num_tokens for chunk in chunks]
        can_share = not any(s.job.logprob_options.prefills_alone for s in sequences)
        if can_share and all(map(_is_live, sequences)):  # else their slots are not adjacent
            yield from self._run_decoder("prefill", sequences, sizes)
            return
        for sequence, size in zip(sequences, sizes, strict=True):
            if sequence.is_live:
                yield from self._run_decoder("prefill", [sequence], [size])

    def _decode(self, sequences: Sequence[DecodingSequence]) -> Iterator[Run]:
        if all(sequence.job.logprob_options.attention is None for sequence in sequences):
            yield from self._run_decoder("decode", sequences, [1] * len(sequences))
            return
        # The last prompt token of a job that wants attention runs in the graph ``attend``.
        for sequence in sequences:
            if sequence.is_live:
                phase = "prefill" if sequence.phase == Phase.PREFILLING else "decode"
                yield from self._run_decoder(phase, [sequence], [1])

    def _run_decoder(
        self, phase: str, sequences: Sequence[DecodingSequence], sizes: Sequence[int]
    ) -> Iterator[Run]:
        """Runs the decoder over the next tokens of neighbouring slots, in slot order."""
        chunks = list(zip(sequences, sizes, strict=True))

        def run(chunks: Sequence[tuple[DecodingSequence, int]]) -> Logits:
            started = self._clock()
            sequences, sizes = zip(*chunks, strict=True)
            logits = self._logits(phase, sequences, sizes)
            self._report(phase, len(chunks), sum(sizes), started)
            return logits

        label = f"a {phase} run of {self.model}"
        for batch, logits in run_with_isolation(chunks, run, label, lambda chunk: chunk[0].is_live):
            sequences, sizes = zip(*batch, strict=True)
            yield Run(sequences, sizes, logits)

    def _logits(
        self, phase: str, sequences: Sequence[DecodingSequence], sizes: Sequence[int]
    ) -> Logits:
        """Logits ``[sequences, vocabulary]`` after the next tokens; sequences in slot order."""
        first = sequences[0]
        slot = self._slots.slot_of(first)
        if phase == "prefill" and first.job.logprob_options.prefills_alone:
            group = self._jobs.group_of(first)
            return prefill_alone(self._runner, group, first, slot, sizes[0])
        if phase == "decode" and slot == 0 and self._runner.buckets is not None:
            count = self._runner.buckets.rows_for(len(sequences)) - len(sequences)
            padding = self._slots.padding_positions(len(sequences), count)
            if padding is not None:
                return self._runner.decode_padded(sequences, padding)
        return self._runner.decode(sequences, slot, sizes)

    def _release_ended(self) -> None:
        """Releases the slots of ended sequences. Slots move only here and in forks."""
        for sequence in self._jobs.take_ended():
            if not self._waiting.discard(sequence.id):
                self._slots.release(sequence)

    def _report(self, phase: str, num_sequences: int, num_tokens: int, started: float) -> None:
        seconds = self._clock() - started
        self._observer.on_run(self.model, RunReport(phase, num_sequences, num_tokens, seconds))


def _is_live(sequence: DecodingSequence) -> bool:
    return sequence.is_live
