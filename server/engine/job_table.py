"""The jobs of a worker, their sequences, and their updates.

A job, or one of its outputs, ends in one place: :meth:`JobTable.finish`.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from server.constraint import Floats
from server.engine.cache.slot_store import SlotStore
from server.engine.decoding.beam import BeamSearch
from server.engine.decoding.sampling import TokenLogprob
from server.engine.failures import NO_TOKEN, NOT_FINITE
from server.engine.requests.job import GenerationJob
from server.engine.requests.lifecycle import Event, Outcome, Phase, ending_event
from server.engine.requests.sequence import DecodingSequence
from server.engine.requests.update import JobTimes, JobUpdate
from server.engine.token_selector import NextToken

# While more sequences run, the tokens of a stream may wait: see ``Delivery.STREAM``.
FEW_SEQUENCES = 4


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """A job and its sequences.

    Attributes:
        id: the job's.
        sequences: those that have not ended; with a search, in the order of its live hypotheses.
        search: the beam search, if the job has beams.
        is_independent: each sequence is one output: all samples have forked, and there is no
            search.
        num_open_outputs: outputs that have not ended.
        num_published_tokens: tokens of the search's best hypothesis that were published.
        agreed_times: when all of the search's hypotheses agreed on each of their first tokens.
        num_reused_tokens: prompt tokens copied from a cached prefix.
        attention: weights of each token, ``[layers, heads, source]``.
    """

    id: int
    job: GenerationJob
    times: JobTimes
    sequences: list[DecodingSequence]
    search: BeamSearch | None
    is_independent: bool
    num_open_outputs: int
    num_published_tokens: int = 0
    agreed_times: list[float] = field(default_factory=list)
    num_reused_tokens: int = 0
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    attention: list[Floats] = field(default_factory=list)

    @classmethod
    def of(cls, id_: int, first: DecodingSequence, submitted: float) -> "SequenceGroup":
        """A job with the sequence that will prefill its prompt."""
        job, search = first.job, None
        if job.beams is not None and job.max_new_tokens:
            search = BeamSearch(job.beams, job.eos, job.max_new_tokens)
        return cls(
            id_,
            job,
            JobTimes(submitted),
            [first],
            search,
            is_independent=job.num_sequences == 1 and search is None,
            num_open_outputs=job.num_outputs,
        )

    def last_updates(self, outcome: Outcome, failure: str, now: float) -> list["LastUpdate"]:
        """The last update of every open output when the job ends ``now`` with ``outcome``."""
        if self.is_independent:
            return [last_update(sequence, outcome, failure) for sequence in self.sequences]
        if self.search is not None and outcome in {Outcome.STOP, Outcome.TIME_LIMIT}:
            hypotheses = self._hypotheses(self.search, now)
            if hypotheses:  # a constraint may allow fewer than the job wants
                return hypotheses
            if self.search.is_over:
                return [LastUpdate(0, Outcome.UNSATISFIABLE, failure=NO_TOKEN)]
        outputs = range(self.job.num_outputs)
        return [LastUpdate(output, outcome, failure=failure) for output in outputs]

    def _hypotheses(self, search: BeamSearch, now: float) -> list["LastUpdate"]:
        """The best hypotheses; of the first, only the tokens that were not published."""
        updates = []
        for output, hypothesis in enumerate(search.best(self.job.num_outputs)):
            published = 0 if output else self.num_published_tokens
            tokens, values = hypothesis.tokens[published:], hypothesis.logprobs[published:]
            if self.job.logprob_options.top_logprobs is None:
                values = ()
            outcome = Outcome.STOP
            if hypothesis.tokens[-1] not in self.job.eos:
                is_full = len(hypothesis.tokens) >= self.job.max_new_tokens
                outcome = Outcome.LENGTH if is_full or search.is_over else Outcome.TIME_LIMIT
            logprobs = tuple(map(TokenLogprob, values))
            agreed = () if output else self.agreed_times[published:]
            times = (*agreed, *[now] * (len(tokens) - len(agreed)))
            last = LastUpdate(output, outcome, tokens, logprobs, hypothesis.score, times=times)
            updates.append(last)
        return updates


class LastUpdate(NamedTuple):
    """The last tokens of an output, and how it ends."""

    output: int
    outcome: Outcome
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    score: float | None = None
    failure: str = ""
    times: tuple[float, ...] = ()


def last_update(sequence: DecodingSequence, outcome: Outcome, failure: str) -> LastUpdate:
    """The last update of an independent sequence, with all tokens that were not published."""
    tokens, logprobs, times = sequence.unpublished.take()
    return LastUpdate(sequence.output, outcome, tokens, logprobs, failure=failure, times=times)


class JobTable:
    """All jobs and sequences of a worker, and the updates of the current step.

    Args:
        slots: of the running sequences; the table clears the slots of failed ones.
    """

    def __init__(self, slots: SlotStore) -> None:
        self._slots = slots
        self._groups: dict[int, SequenceGroup] = {}
        self._group_of: dict[int, SequenceGroup] = {}  # by sequence
        self._sequence_ids = itertools.count()
        self._ended: list[DecodingSequence] = []
        self._updates: list[JobUpdate] = []

    @property
    def is_empty(self) -> bool:
        return not self._groups

    def open(self, id_: int, job: GenerationJob, now: float) -> DecodingSequence:
        """Adds a job. Returns the sequence that will prefill its prompt."""
        first = DecodingSequence.first_of(next(self._sequence_ids), job)
        self._groups[id_] = self._group_of[first.id] = SequenceGroup.of(id_, first, now)
        return first

    def group_of(self, sequence: DecodingSequence) -> SequenceGroup:
        """The group of ``sequence``."""
        return self._group_of[sequence.id]

    def fork(self, parent: DecodingSequence, output: int) -> DecodingSequence:
        """Copies ``parent`` into a new sequence of the same job, with its own slot."""
        child = parent.fork(next(self._sequence_ids), output)
        self._slots.fork(parent, child)
        self._group_of[child.id] = self._group_of[parent.id]
        return child

    def cancel(self, id_: int, output: int | None) -> None:
        """Marks a job, or one independent output of it, to end in the next step.

        Ignores an unknown job.
        """
        group = self._groups.get(id_)
        for sequence in () if group is None else group.sequences:
            if output is None or (
                self.group_of(sequence).is_independent and sequence.output == output
            ):
                sequence.on(Event.CANCEL)

    def end_early(self, id_: int, now: float) -> None:
        """Ends a sequence that is cancelled or past its deadline, if it has not ended."""
        group = self._group_of[id_]
        sequence = next((sequence for sequence in group.sequences if sequence.id == id_), None)
        if sequence is not None:  # else it ended with another sequence of its job
            self.end(sequence, _early_outcome(sequence, now), now)

    def end(
        self, sequence: DecodingSequence, outcome: Outcome, now: float, failure: str = ""
    ) -> None:
        """Ends a sequence without a token; the whole job unless the sequence is independent."""
        group = self._group_of[sequence.id]
        only = sequence if group.is_independent else None
        self.finish(group, outcome, now, failure, only)

    def record(self, selected: NextToken, now: float) -> None:
        """Adds the next token of an independent sequence; publishes its tokens if that is due.

        Ends the sequence if the token is its last.
        """
        sequence, token, outcome, logprobs, failure = selected
        group = self._group_of[sequence.id]
        if group.times.first_token is None:
            group.times.first_token = now
        if token is not None:
            sequence.unpublished.add(token, logprobs, now)
        if outcome is not None:
            self.finish(group, outcome, now, failure, sequence)
        elif not sequence.may_wait(now, is_busy=len(self._slots.running) > FEW_SEQUENCES):
            sequence.last_published = now
            tokens, logprobs, times = sequence.unpublished.take()
            update = JobUpdate(
                group.id, tokens, output=sequence.output, logprobs=logprobs, token_times=times
            )
            self._updates.append(update)

    def record_all(
        self,
        sequence: DecodingSequence,
        tokens: Sequence[int | None],
        times: Sequence[float],
        outcome: Outcome | None,
    ) -> None:
        """Adds tokens of a sequence whose output is delivered whole. Ends it if ``outcome``.

        ``tokens``: the last is None if the logits are not finite. ``times``: of each.
        """
        group = self._group_of[sequence.id]
        if group.times.first_token is None:
            group.times.first_token = times[0]
        known = [token for token in tokens if token is not None]
        sequence.unpublished.tokens += known
        sequence.unpublished.times += times[: len(known)]
        if outcome is not None:
            failure = NOT_FINITE if outcome is Outcome.FAILED else ""
            self.finish(group, outcome, times[-1], failure, sequence)

    def publish(self, update: JobUpdate) -> None:
        """Publishes an update that ends no output."""
        self._updates.append(update)

    def finish(
        self,
        group: SequenceGroup,
        outcome: Outcome,
        now: float,
        failure: str = "",
        only: DecodingSequence | None = None,
    ) -> None:
        """Ends a job, or the one output of the independent sequence ``only``.

        No other method ends a job or an output.

        Its sequences leave the job. :meth:`take_ended` returns them, and the worker then releases
        their slots. The slots of failed sequences are cleared now, before any slot moves.
        """
        if only is None:
            ended, last_updates = group.sequences, group.last_updates(outcome, failure, now)
            group.sequences = []
            group.num_open_outputs = len(last_updates)
        else:
            ended, last_updates = [only], [last_update(only, outcome, failure)]
            group.sequences.remove(only)
        event = ending_event(outcome)
        for sequence in ended:
            sequence.on(event)
            if sequence.phase == Phase.FAILED:
                self._slots.clear(sequence)
        self._ended += ended
        for last in last_updates:
            group.num_open_outputs -= 1
            self._updates.append(_last_update(group, last, now))
        if not group.num_open_outputs:
            del self._groups[group.id]

    def replace_sequences(self, group: SequenceGroup, sequences: list[DecodingSequence]) -> None:
        """Continues the job with ``sequences``; its other sequences have ended."""
        self._ended += [sequence for sequence in group.sequences if sequence not in sequences]
        group.sequences = sequences

    def take_ended(self) -> list[DecodingSequence]:
        """Removes and returns the sequences that ended since the last call."""
        ended, self._ended = self._ended, []
        for sequence in ended:
            del self._group_of[sequence.id]
        return ended

    def drain_updates(self) -> list[JobUpdate]:
        """Removes and returns the updates since the last call."""
        updates, self._updates = self._updates, []
        return updates

    def check(self, held: Sequence[DecodingSequence]) -> None:
        """Checks, between two steps, that jobs and sequences match. For tests.

        Args:
            held: the sequences that wait or run.

        Raises:
            RuntimeError: a sequence is lost, or belongs to no job.
        """
        working = [s for group in self._groups.values() for s in group.sequences]
        if {s.id for s in held} != {s.id for s in working} or len(held) != len(working):
            raise RuntimeError(f"{held} wait or run, {working} work on jobs")
        if self._ended or self._group_of.keys() != {s.id for s in working}:
            raise RuntimeError(f"ended sequences are left: {self._ended}")
        if not all(s.is_live for s in working):
            raise RuntimeError(f"an ended sequence works on a job: {working}")


def _last_update(group: SequenceGroup, last: LastUpdate, now: float) -> JobUpdate:
    return JobUpdate(
        group.id,
        last.tokens,
        completion=group.times.complete(last.outcome, now, last.failure, group.num_reused_tokens),
        output=last.output,
        logprobs=last.logprobs,
        prompt_logprobs=tuple(group.prompt_logprobs),
        score=last.score,
        token_times=last.times,
        attention=np.stack(group.attention) if group.attention else None,
        has_more=group.num_open_outputs > 0,
    )


def _early_outcome(sequence: DecodingSequence, now: float) -> Outcome:
    finish_by = sequence.job.finish_by
    if sequence.phase == Phase.CANCELLING:
        return Outcome.CANCELLED
    if finish_by is not None and finish_by <= now:
        return Outcome.TIME_LIMIT
    return Outcome.DEADLINE
