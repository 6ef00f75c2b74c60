"""The worker of decoders and encoder-decoders. Begin at :meth:`GenerationWorker.step`."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from server.engine.cache.admission_plan import PrefixMatch
from server.engine.cache.idle_rows import IdleLimits
from server.engine.cache.slot_store import SlotStore
from server.engine.cache.slot_tensors import Capacity
from server.engine.clock import Clock
from server.engine.decoder_runs import DecoderRuns, Run
from server.engine.decoding import sampling
from server.engine.decoding.logits import Logits
from server.engine.encoder_runs import EncoderRuns
from server.engine.failures import (
    NOT_CHOSEN,
    NOT_FINITE,
    run_failure,
)
from server.engine.forking import Forking
from server.engine.gpu.device_sampler import DeviceSampler
from server.engine.job_table import JobTable
from server.engine.lane import never
from server.engine.model_runner import ModelRunner
from server.engine.multi_step import ManyRuns
from server.engine.observer import Observer, WorkerStats
from server.engine.recording import RecordedRuns, record_runs
from server.engine.requests.job import GenerationJob
from server.engine.requests.lifecycle import Ending, Event, Outcome
from server.engine.requests.sequence import DecodingSequence
from server.engine.requests.update import JobUpdate
from server.engine.requests.waiting_queue import WaitingQueue
from server.engine.run_inputs import Chunk
from server.engine.scheduler import Plan, StepLimits, schedule
from server.engine.speculative import VerifiedTokens
from server.engine.token_selector import TokenSelector

log = logging.getLogger(__name__)


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
        allows_drafts: see :class:`server.engine.decoder_runs.DecoderRuns`.
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
        *,
        allows_drafts: bool = True,
    ) -> None:
        self.model, self.progress = model, runner.progress
        self._runner, self._clock, self._observer = runner, clock, observer
        self._capacity, self._limits = capacity, limits
        self._recorded = RecordedRuns()
        self._runs_since_encode = 0
        self._next_image: tuple[DecodingSequence, int] | None = None
        self._waiting = WaitingQueue()
        self._slots = SlotStore(runner.cache, capacity)
        self._jobs = JobTable(self._slots)
        self._selector = TokenSelector(device_sampler)
        self._forking = Forking(self._jobs, self._slots, self._selector)
        self._encoder = EncoderRuns(model, runner, self._slots, self._jobs, clock, observer)
        self._decoder = DecoderRuns(
            *(model, runner, self._slots, self._jobs, clock, observer),
            chooses_on_host=device_sampler is None,
            allows_drafts=allows_drafts,
        )

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
            num_cuda_graphs=self._recorded.num_graphs,
            cuda_graph_bytes=self._recorded.num_bytes,
        )

    def prepare(self) -> None:
        """Records runs of fixed sizes, if there are buckets and the device supports it."""
        recorded = [record_runs(each, self.model) for each in self._runner.recorders]
        self._recorded = RecordedRuns(*map(sum, zip(*recorded, strict=True)))

    def submit(self, id_: int, job: GenerationJob) -> None:
        """Queues a job. Raises ``ValueError`` if it needs more slots than there are."""
        needed, num_slots = job.num_sequences, self._limits.num_slots
        if needed > num_slots:
            raise ValueError(f"the job needs {needed} slots, there are {num_slots}")
        now = self._clock()
        self._waiting.add(self._jobs.add(id_, job, now), now)

    def cancel(self, id_: int, output: int | None = None) -> None:
        """Marks a job, or one output of it, to end in the next step; ignores a job that has ended.

        Outputs that share sequences, as in a beam search, are not cancelled alone.
        """
        self._jobs.cancel(id_, output)

    def step(self, may_continue: Callable[[], bool] = never) -> list[JobUpdate]:
        """Schedules, runs and applies one step. Returns the updates of all jobs, in order.

        ``may_continue``: see :class:`server.engine.lane.Worker`.
        """
        plan = self._schedule()
        for chunks, result in self._run(plan, may_continue):
            self._apply(chunks, result)
        self._fork()
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
        for sequence in chain(self._waiting.items, self._slots.running):
            outcome = sequence.early_outcome(now)
            if outcome is not None and sequence.is_live:  # one may end others of its job
                self._jobs.end(sequence, Ending(outcome), now)
        self._release_ended()
        waiting, self._next_image = self._waiting.items, None
        if not waiting:
            return schedule(waiting, self._slots.running, self._limits)
        prefixes = self._slots.plan_admissions(waiting)
        if prefixes.next_image is not None:
            id_, index = prefixes.next_image
            sequence = next(sequence for sequence in waiting if sequence.id == id_)
            self._next_image = sequence, index
        running, since_encode = self._slots.running, self._runs_since_encode
        plan = schedule(waiting, running, self._limits, prefixes, since_encode)
        if plan.encode:
            self._runs_since_encode = 0
        for id_ in plan.admit:
            self._admit(self._waiting.admit(id_), prefixes.matches.get(id_), now)
        return plan

    def _admit(self, sequence: DecodingSequence, match: PrefixMatch | None, now: float) -> None:
        sequence.on(Event.ENCODE if sequence.num_source_tokens else Event.PREFILL)
        group = self._jobs.group_of(sequence)
        group.times.started = now
        self._slots.admit(sequence, match)
        group.num_reused_tokens = sequence.num_cached_tokens

    def _run(self, plan: Plan, may_continue: Callable[[], bool]) -> Iterator[Run]:
        """Runs the plan. Each run starts after the caller has applied the previous one."""
        if self._next_image is not None:
            self._encoder.encode_image(*self._next_image)
        for batch in plan.encode:
            self._encoder.encode([self._slots.get(id_) for id_ in batch])
        for chunks in plan.prefill:
            yield from self._decoder.prefill(chunks)
        if plan.decode:
            sequences = [self._slots.get(id_) for id_ in plan.decode]
            for run in self._decoder.decode(sequences, plan.num_decode_runs, may_continue):
                self._runs_since_encode += 1
                yield run

    def _apply(
        self, chunks: Sequence[Chunk], result: Logits | ManyRuns | VerifiedTokens | Ending
    ) -> None:
        """Applies the result of a run to its sequences."""
        now = self._clock()
        if isinstance(result, Ending):
            self._jobs.end_all([chunk.sequence for chunk in chunks], result, now)
        elif isinstance(result, ManyRuns):
            self._apply_many(chunks, result)
        elif isinstance(result, VerifiedTokens):
            self._append_all(chunks[0].sequence, result.tokens, [now] * len(result.tokens))
        else:
            try:
                self._select(chunks, result, now)
            except Exception as error:  # of a run on the device, which reads or samples the logits
                log.exception("%s: selecting tokens failed", self.model)
                failure = run_failure(error, NOT_CHOSEN)
                self._jobs.end_all([chunk.sequence for chunk in chunks], failure, now)

    def _apply_many(self, chunks: Sequence[Chunk], runs: ManyRuns) -> None:
        """Counts the tokens of several decode runs as cached, and appends those that they chose."""
        self._runs_since_encode += len(runs.tokens) - 1
        for chunk, tokens in zip(chunks, zip(*runs.tokens, strict=True), strict=True):
            self._append_all(chunk.sequence, tokens, runs.times[1:])

    def _append_all(
        self, sequence: DecodingSequence, tokens: Sequence[int | None], times: Sequence[float]
    ) -> None:
        """Appends tokens, and counts those before each of them as cached."""
        sequence.num_cached_tokens += len(tokens)
        self._jobs.record_all(sequence, tokens, times)

    def _select(self, chunks: Sequence[Chunk], logits: Logits, now: float) -> None:
        """Counts a run's tokens as cached, and selects tokens for fully cached sequences."""
        sequences = [chunk.sequence for chunk in chunks]
        selecting: list[int] = []
        prefilling: list[int] = []
        forking: list[int] = []
        for index, (sequence, _, size) in enumerate(chunks):
            sequence.num_cached_tokens += size
            group = self._jobs.group_of(sequence)
            ids = sequence.job.logprob_options.first_token_ids
            if ids and not sequence.num_remaining_tokens and not group.first_logprobs:
                group.first_logprobs = sampling.logprobs_of(logits.rows([index])[0], ids)
            if sequence.num_remaining_tokens:
                prefilling.append(index)
            elif not sequence.job.max_new_tokens:
                group.times.first_token = now
                self._jobs.end(sequence, Ending(Outcome.LENGTH), now)
            elif group.is_independent:
                selecting.append(index)
            else:
                forking.append(index)
        if prefilling:
            failing = self._selector.find_non_finite(prefilling, logits)
            self._jobs.end_all([sequences[index] for index in failing], NOT_FINITE, now)
        if forking:
            self._forking.add([sequences[index] for index in forking], forking, logits)
        if selecting:
            chosen = [sequences[index] for index in selecting]
            for next_token in self._selector.select(chosen, selecting, logits):
                self._jobs.record(next_token, now)

    def _fork(self) -> None:
        """Forks what is pending. If the device cannot copy the slots, those jobs fail."""
        if not self._forking.pending:
            return
        now, groups = self._clock(), [group for group, _ in self._forking.pending.values()]
        try:
            self._forking.run(now)
        except Exception as error:
            log.exception("%s: forking failed", self.model)
            self._forking.discard()
            failure = run_failure(error, NOT_CHOSEN)
            for group in filter(lambda group: group.sequences, groups):
                self._jobs.end_job(group, failure, now)

    def _release_ended(self) -> None:
        """Releases the slots of ended sequences. Slots move only here and in forks."""
        ended = [s for s in self._jobs.drain_ended() if not self._waiting.discard(s.id)]
        in_order = deque(sorted(ended, key=self._slots.slot_of))
        while in_order:
            # The last sequence fills a slot that is freed: it should be one that goes on.
            is_last = in_order[-1] is self._slots.running[-1]
            self._slots.release(in_order.pop() if is_last else in_order.popleft())
