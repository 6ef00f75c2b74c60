"""Runs the decoder over prompts and single tokens. A failed run is repeated chunk by chunk."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from operator import sub

from server.engine.cache.slot_store import SlotStore
from server.engine.clock import Clock
from server.engine.decoding.logits import Logits
from server.engine.failures import BatchResult, run_with_isolation
from server.engine.job_table import JobTable
from server.engine.lane import never
from server.engine.model_runner import ModelRunner
from server.engine.multi_step import ManyRuns, decode_runs
from server.engine.observer import Observer, RunReport
from server.engine.prefill_alone import prefill_alone
from server.engine.requests.lifecycle import Phase
from server.engine.requests.sequence import DecodingSequence
from server.engine.run_inputs import Chunk, next_chunk
from server.engine.scheduler import PromptChunk
from server.engine.speculative import VerifiedTokens, verify

log = logging.getLogger(__name__)

Run = BatchResult[Chunk, Logits | ManyRuns | VerifiedTokens]
"""A run of the decoder. Its result is logits ``[chunks, vocabulary]``, valid until the next run.

Several runs over the next tokens of the same sequences are one :class:`ManyRuns`. A run over one
sequence and a draft of its tokens has :class:`VerifiedTokens`.
"""


class DecoderRuns:
    """Runs one model's decoder. Each run starts when the caller takes it from the iterator.

    Args:
        model: the model's name, for reports.
        runner: runs the model's graphs.
        slots: the cache of the running sequences.
        jobs: the table of all jobs.
        clock: returns seconds.
        observer: receives a report of every run.
        chooses_on_host: whether the host chooses all tokens.
        allows_drafts: whether a sequence that runs alone may draft tokens, if its model allows it.
    """

    def __init__(
        self,
        model: str,
        runner: ModelRunner,
        slots: SlotStore,
        jobs: JobTable,
        clock: Clock,
        observer: Observer,
        *,
        chooses_on_host: bool,
        allows_drafts: bool,
    ) -> None:
        self._model, self._runner, self._slots, self._jobs = model, runner, slots, jobs
        self._clock, self._observer = clock, observer
        self._allows_multi_step = chooses_on_host and runner.decodes_greedily
        # A recurrent state cannot forget the tokens of a draft that are wrong.
        is_recurrent = runner.cache.has_recurrent_states
        self._allows_drafts = allows_drafts and self._allows_multi_step and not is_recurrent

    def prefill(self, planned: Sequence[PromptChunk]) -> Iterator[Run]:
        """Runs the decoder over chunks of prompts, in slot order."""
        chunks = [next_chunk(self._slots.get(chunk.id), chunk.num_tokens) for chunk in planned]
        can_share = not any(chunk.sequence.prefills_alone for chunk in chunks)
        if can_share and all(map(_is_live_chunk, chunks)):  # else their slots are not adjacent
            return self._run("prefill", chunks)
        runs = (self._run("prefill", [chunk]) for chunk in chunks if _is_live_chunk(chunk))
        return chain.from_iterable(runs)

    def decode(
        self,
        sequences: Sequence[DecodingSequence],
        max_runs: int,
        may_continue: Callable[[], bool],
    ) -> Iterator[Run]:
        """Runs the decoder over the next token of each sequence, in slot order.

        Args:
            sequences: at least one.
            max_runs: how many runs may be made, if all sequences allow it.
            may_continue: returns whether there is no other work. A device may then start the next
                step, probably over the same sequences, before it is asked for.
        """
        if self._allows_drafts and len(sequences) == 1 and _may_draft(sequences[0]):
            return self._decode_alone(sequences[0], max_runs, may_continue)
        chunks = [next_chunk(sequence, 1) for sequence in sequences]
        if self._allows_multi_step and all(s.allows_multi_step for s in sequences):
            runs = self._decode_multi_step(chunks, max_runs, may_continue)
            if runs is not None:
                return iter([BatchResult(chunks, runs)])
        if not any(map(_wants_attention, chunks)):
            return self._run("decode", chunks, may_continue)
        return chain.from_iterable(self._decode_beside_attention(chunks))

    def _decode_alone(
        self, sequence: DecodingSequence, max_runs: int, may_continue: Callable[[], bool]
    ) -> Iterator[Run]:
        """Runs the decoder over a sequence's next token and a draft, until it ends.

        It makes at most ``max_runs`` runs, and none after the deadline or if there is other work.
        """
        deadline = math.inf if sequence.deadline is None else sequence.deadline
        for _ in range(max_runs):
            chunks = [next_chunk(sequence, 1)]
            verified = self._verify_draft(sequence)
            if verified is None:
                yield from self._run("decode", chunks)
                return
            yield BatchResult(chunks, verified)
            if not (sequence.is_live and _may_draft(sequence)):
                return
            if self._clock() >= deadline or not may_continue():
                return

    def _verify_draft(self, sequence: DecodingSequence) -> VerifiedTokens | None:
        """Runs the decoder over a sequence's next token and a draft; None if the run failed."""
        assert sequence.drafter is not None
        started = self._clock()
        num_left = sequence.job.max_new_tokens - sequence.num_generated_tokens
        limit = min(num_left, self._slots.room_of(sequence)) - 1
        draft = sequence.drafter.draft(sequence.tokens, limit)
        try:
            verified = verify(self._runner, sequence, self._slots.slot_of(sequence), draft)
        except Exception:
            log.warning("%s: a decode run failed: no more drafts", self._model, exc_info=True)
            sequence.drafter = None
            return None
        num_accepted = len(verified.tokens) - 1
        seconds = (self._clock() - started,)
        report = RunReport("decode", 1, 1 + len(draft), seconds, len(draft), num_accepted)
        self._observer.on_run(self._model, report)
        return verified

    def _decode_multi_step(
        self, chunks: Sequence[Chunk], max_runs: int, may_continue: Callable[[], bool]
    ) -> ManyRuns | None:
        """Runs the decoder until a sequence ends, or there is other work; None if a run failed."""
        sequences = [chunk.sequence for chunk in chunks]
        limit = min(max_runs, *map(self._slots.room_of, sequences))
        slot = self._slots.slot_of(sequences[0])
        try:
            runs = decode_runs(self._runner, chunks, slot, limit, self._clock, may_continue)
        except Exception:
            log.warning("%s: a decode run failed: repeating all", self._model, exc_info=True)
            for sequence in sequences:  # else each of its tokens repeats the runs up to the failure
                sequence.allows_multi_step = False
            return None
        seconds = tuple(map(sub, runs.times[1:], runs.times))
        report = RunReport("decode", len(chunks), len(chunks), seconds)
        self._observer.on_run(self._model, report)
        return runs

    def _decode_beside_attention(self, chunks: Sequence[Chunk]) -> Iterator[Iterator[Run]]:
        """Runs the chunks between two jobs that want attention weights together, those alone."""
        for wants_attention, adjacent in groupby(chunks, _wants_attention):
            if not wants_attention:
                yield self._run("decode", list(adjacent))
                continue
            # The last token of a prompt runs in the graph ``attend``.
            for chunk in filter(_is_live_chunk, adjacent):
                is_prompt = chunk.sequence.phase == Phase.PREFILLING
                yield self._run("prefill" if is_prompt else "decode", [chunk])

    def _run(
        self, phase: str, chunks: Sequence[Chunk], may_continue: Callable[[], bool] = never
    ) -> Iterator[Run]:
        """Runs the decoder over chunks of sequences in neighbouring slots, in slot order."""
        label = f"a {phase} run of {self._model}"
        run = partial(self._logits, phase, may_continue)
        return run_with_isolation(chunks, run, label, _is_live_chunk)

    def _logits(
        self, phase: str, may_continue: Callable[[], bool], chunks: Sequence[Chunk]
    ) -> Logits:
        """Runs the graph. Returns logits ``[chunks, vocabulary]`` after each chunk's last token."""
        started = self._clock()
        logits = self._run_graph(phase, chunks, may_continue)
        num_tokens = sum(chunk.size for chunk in chunks)
        report = RunReport(phase, len(chunks), num_tokens, (self._clock() - started,))
        self._observer.on_run(self._model, report)
        return logits

    def _run_graph(
        self, phase: str, chunks: Sequence[Chunk], may_continue: Callable[[], bool]
    ) -> Logits:
        first = chunks[0].sequence
        slot = self._slots.slot_of(first)
        if phase == "prefill" and first.prefills_alone:
            group = self._jobs.group_of(first)
            return prefill_alone(self._runner, group, first, slot, chunks[0].size)
        if phase == "decode" and slot == 0 and self._runner.buckets is not None:
            count = self._runner.buckets.rows_for(len(chunks)) - len(chunks)
            padding = self._slots.padding_positions(len(chunks), count)
            if padding is not None:
                sequences = [chunk.sequence for chunk in chunks]
                return self._runner.decode_padded(sequences, padding, may_continue)
        return self._runner.decode(chunks, slot)


def _may_draft(sequence: DecodingSequence) -> bool:
    wants_attention = sequence.job.attention is not None  # which a run of its own returns
    return sequence.drafter is not None and sequence.may_run_ahead and not wants_attention


def _is_live_chunk(chunk: Chunk) -> bool:
    return chunk.sequence.is_live


def _wants_attention(chunk: Chunk) -> bool:
    return chunk.sequence.job.attention is not None
