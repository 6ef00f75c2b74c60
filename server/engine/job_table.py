"""The jobs of a worker, their sequences, and their updates.

Only :meth:`JobTable._end` ends a job or one of its outputs.
"""

import itertools
from collections.abc import Iterable, Sequence

from server.engine.cache.slot_store import SlotStore
from server.engine.decoding.sampling import TokenLogprob
from server.engine.failures import NOT_FINITE, selection_failure
from server.engine.requests.job import GenerationJob
from server.engine.requests.lifecycle import Ending, Event, Outcome, Phase, ending_event
from server.engine.requests.sequence import DecodingSequence
from server.engine.requests.update import JobUpdate
from server.engine.sequence_group import SequenceGroup
from server.engine.token_selector import NextToken

# While more sequences run, the tokens of a stream may wait: see ``Delivery.STREAM``.
FEW_SEQUENCES = 4


class JobTable:
    """All jobs and sequences of a worker, and the updates of the current step.

    Args:
        slots: the cache of the running sequences; the table clears the slots of failed ones.
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

    def add(self, id_: int, job: GenerationJob, now: float) -> DecodingSequence:
        """Adds a job. Returns the sequence that will prefill its prompt."""
        first = DecodingSequence.first_of(next(self._sequence_ids), job)
        self._groups[id_] = self._group_of[first.id] = SequenceGroup.of(id_, first, now)
        return first

    def group_of(self, sequence: DecodingSequence) -> SequenceGroup:
        """Returns the group of ``sequence``."""
        return self._group_of[sequence.id]

    def fork(self, parent: DecodingSequence, output: int) -> DecodingSequence:
        """Copies ``parent`` into a new sequence of the same job, with its own slot.

        If the slot cannot be copied, the new sequence ends, and the error is raised.
        """
        child = parent.fork(next(self._sequence_ids), output)
        self._group_of[child.id] = self._group_of[parent.id]
        try:
            self._slots.fork(parent, child)
        except Exception:
            child.on(Event.FAIL)
            self._ended.append(child)
            raise
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

    def end(self, sequence: DecodingSequence, ending: Ending, now: float) -> None:
        """Ends a sequence without a token, and its whole job unless the sequence is independent."""
        group = self._group_of[sequence.id]
        self._end(group, ending, now, sequence if group.is_independent else None)

    def end_all(self, sequences: Iterable[DecodingSequence], ending: Ending, now: float) -> None:
        """Ends the sequences that have not ended, as :meth:`end` does."""
        for sequence in sequences:
            if sequence.is_live:  # one may end others of its job
                self.end(sequence, ending, now)

    def end_job(self, group: SequenceGroup, ending: Ending, now: float) -> None:
        """Ends all outputs of a job that have not ended."""
        self._end(group, ending, now)

    def record(self, next_token: NextToken, now: float) -> None:
        """Appends an independent sequence's next token, and publishes its tokens if they are due.

        Ends the sequence if the token is its last, or if none could be chosen.
        """
        sequence, token, logprobs = next_token
        group = self._group_of[sequence.id]
        if group.times.first_token is None:
            group.times.first_token = now
        if isinstance(token, Ending):
            ending: Ending | None = token
        else:
            ending = self._append(sequence, token, logprobs, now)
        if ending is not None:
            self._end(group, ending, now, sequence)
        elif not sequence.may_wait(now, is_busy=len(self._slots.running) > FEW_SEQUENCES):
            sequence.last_published = now
            tokens, logprobs, times = sequence.unpublished.take()
            self._updates.append(JobUpdate(group.id, tokens, sequence.output, logprobs, times))

    def record_all(
        self, sequence: DecodingSequence, tokens: Sequence[int | None], times: Sequence[float]
    ) -> None:
        """Appends several tokens of an independent sequence. Only the last may end it.

        ``tokens``: the last is None if its logits are not finite. ``times``: when each was chosen.
        """
        group = self._group_of[sequence.id]
        if group.times.first_token is None:
            group.times.first_token = times[0]
        earlier = [token for token in tokens[:-1] if token is not None]
        sequence.tokens += earlier
        sequence.unpublished.tokens += earlier
        sequence.unpublished.times += times[:-1]
        last = NOT_FINITE if tokens[-1] is None else tokens[-1]
        self.record(NextToken(sequence, last), times[-1])

    def publish(self, update: JobUpdate) -> None:
        """Publishes an update that ends no output."""
        self._updates.append(update)

    def replace_sequences(self, group: SequenceGroup, sequences: list[DecodingSequence]) -> None:
        """Continues the job with ``sequences``; its other sequences have ended."""
        self._ended += [sequence for sequence in group.sequences if sequence not in sequences]
        group.sequences = sequences

    def drain_ended(self) -> list[DecodingSequence]:
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

    def _append(
        self,
        sequence: DecodingSequence,
        token: int,
        logprobs: Sequence[TokenLogprob],
        now: float,
    ) -> Ending | None:
        """Appends ``token``. Returns how the sequence ends with it; None if it continues."""
        try:
            outcome = sequence.append(token)
        except Exception as error:
            return selection_failure(error)
        sequence.unpublished.add(token, logprobs, now)
        if outcome is None and not self._slots.room_of(sequence):
            outcome = Outcome.LENGTH
        return None if outcome is None else Ending(outcome)

    def _end(
        self,
        group: SequenceGroup,
        ending: Ending,
        now: float,
        only: DecodingSequence | None = None,
    ) -> None:
        """Ends a job, or the one output of the independent sequence ``only``.

        No other method ends a job or an output.

        The ended sequences leave the job. :meth:`drain_ended` returns them, and the worker then
        releases their slots. The slots of failed sequences are cleared now, before any slot moves.
        """
        if only is None:
            ended, last_updates = group.sequences, group.end_outputs(ending, now)
            group.sequences = []
        else:
            ended, last_updates = [only], [group.end_output(only, ending, now)]
            group.sequences.remove(only)
        event = ending_event(ending.outcome)
        for sequence in ended:
            sequence.on(event)
            if sequence.phase == Phase.FAILED:
                self._slots.clear(sequence)
        self._ended += ended
        self._updates += last_updates
        if not group.num_live_outputs:
            del self._groups[group.id]
