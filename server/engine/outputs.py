"""What becomes of rows when a run is over: tokens, branches, ends. The *apply* of a step."""

import itertools
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

import numpy as np

from server.engine.cache.row_store import SlotCopy, SlotStore
from server.engine.decoding import sampling
from server.engine.decoding.beam import TopTokens
from server.engine.decoding.branching import Branching
from server.engine.decoding.logits import HostLogits, Logits
from server.engine.decoding.logits_processors import ConstraintError
from server.engine.decoding.sampling import TokenLogprob
from server.engine.gpu.device_sampler import DeviceSampler, SampleRequest
from server.engine.requests.lifecycle import Outcome, Phase
from server.engine.requests.sequence import DecodingSequence, Floats, GenerationJob, JobUpdate
from server.engine.requests.sequence_group import SequenceGroup

NOT_FINITE = "the model's output is not finite"
RUN_FAILED = "the model run failed"
NOT_CHOSEN = "choosing the next token failed"
log = logging.getLogger(__name__)


class Outputs:
    """The jobs of a worker, and what was said of them in this step.

    Args:
        rows: where running sequences are.
        max_length: tokens that a row holds.
        chooser: of tokens, where it can; None leaves all to the host.
    """

    def __init__(
        self, rows: SlotStore, max_length: int, chooser: DeviceSampler | None = None
    ) -> None:
        self._chooser = chooser
        self._rows = rows
        self._max_length = max_length
        self._groups: dict[int, SequenceGroup] = {}
        self._group_of: dict[int, SequenceGroup] = {}  # by sequence
        self._ids = itertools.count()
        # Groups whose rows branch at the end of the step, with the logits of each row.
        self._branching: dict[int, dict[int, Floats]] = {}
        self._ended: list[DecodingSequence] = []
        self._updates: list[JobUpdate] = []

    @property
    def is_empty(self) -> bool:
        return not self._groups

    def open(self, id_: int, job: GenerationJob, now: float) -> DecodingSequence:
        """A new job; returns the row that will read its prompt."""
        row = DecodingSequence.first_of(next(self._ids), job)
        self._groups[id_] = self._group_of[row.id] = SequenceGroup.of(id_, row, now)
        return row

    def of(self, row: DecodingSequence) -> SequenceGroup:
        """The job that ``row`` works on."""
        return self._group_of[row.id]

    def cancel(self, id_: int, output: int | None) -> None:
        """Marks the rows of a job, or of one plain output of it; an unknown job is no error."""
        group = self._groups.get(id_)
        for row in () if group is None else group.rows:
            if output is None or (self.of(row).is_plain and row.output == output):
                row.is_cancelled = True

    def drain_updates(self) -> list[JobUpdate]:
        """What was said since the last time."""
        updates, self._updates = self._updates, []
        return updates

    def take_ended(self) -> list[DecodingSequence]:
        """The rows that ended since the last time; they belong to no job any more."""
        ended, self._ended = self._ended, []
        for row in ended:
            del self._group_of[row.id]
        return ended

    def apply(
        self, rows: Sequence[DecodingSequence], sizes: Sequence[int], logits: Logits, now: float
    ) -> None:
        """Notes what was read, and chooses the next token of each row that knows no more."""
        plain: list[int] = []
        unread: list[int] = []
        for index, (row, size) in enumerate(zip(rows, sizes, strict=True)):
            row.num_cached_tokens += size
            if row.num_remaining_tokens:
                unread.append(index)
                continue
            group = self.of(row)
            if not row.job.max_new_tokens:
                group.times.first_token = now
                self._end(row, Outcome.LENGTH, now)
            elif group.is_plain:
                plain.append(index)
            else:
                self._branching.setdefault(group.id, {})[row.id] = logits.row(index)
        if unread and self._chooser is not None:
            sure = self._chooser.finite(logits, unread)
            unread = [index for index, is_sure in zip(unread, sure, strict=True) if not is_sure]
        for index in unread:
            if not np.isfinite(logits.rows([index]).max()):
                self._fail(rows[index], now, NOT_FINITE)
        if plain:
            self._choose([rows[index] for index in plain], plain, logits, now)

    def branch(self, now: float) -> None:
        """The rows of jobs that wait for it become the next ones: all runs of the step are over."""
        groups = [self._groups[id_] for id_ in self._branching]
        tables = [[self._branching[group.id][row.id] for row in group.rows] for group in groups]
        self._branching.clear()
        if not groups:
            return
        # Of all rows at once, and all copies at once: the lanes wait for each other less often.
        count = max(0 if g.search is None else g.search.num_candidates for g in groups)
        found = iter(sampling.top_tokens_of([row for table in tables for row in table], count))
        copies: list[SlotCopy] = []
        for group, table in zip(groups, tables, strict=True):
            self._branch(group, table, list(islice(found, len(table))), copies, now)
        self._rows.copy(copies)

    def drop(self, id_: int, now: float) -> None:
        """Ends an overdue sequence: a plain one alone, any other with its whole job."""
        group = self._group_of[id_]
        row = next((row for row in group.rows if row.id == id_), None)
        if row is None:  # gone already, with another row of its job
            return
        outcome = _overdue_outcome(row, now)
        if outcome == Outcome.TIME_LIMIT and group.search is not None:
            self._end_search(group, now)
        elif group.is_plain:
            self._end(row, outcome, now)
        else:
            self._end_all(group, outcome, now)

    def fail(self, rows: Sequence[DecodingSequence], now: float) -> None:
        """The runs of these rows failed, each alone: a plain one ends, any other with its job."""
        for row in rows:
            self._fail(row, now, RUN_FAILED)

    def _choose(
        self, rows: Sequence[DecodingSequence], indices: Sequence[int], logits: Logits, now: float
    ) -> None:
        """Gives each row its next token, from the ``logits`` at its index."""
        asks = [
            SampleRequest(index, row, 0.0 if row.generator is None else row.generator.random())
            for row, index in zip(rows, indices, strict=True)
        ]
        if self._chooser is not None:
            tokens = self._chooser.choose(logits, asks)
            for ask, token in zip(asks, tokens, strict=True):
                if token is not None:
                    self._next(ask.row, partial(int, token), None, now)
            asks = [ask for ask, token in zip(asks, tokens, strict=True) if token is None]
        if asks:
            self._choose_here(asks, logits.rows([ask.index for ask in asks]), now)

    def _choose_here(self, asks: Sequence[SampleRequest], logits: Floats, now: float) -> None:
        """On the host, from ``logits [asks, vocabulary]``."""
        best = sampling.greedy(logits)
        for ask, token, row_logits in zip(asks, best, logits, strict=True):
            if token is None:
                self._end(ask.row, Outcome.FAILED, now, failure=NOT_FINITE)
            else:
                self._next(ask.row, partial(_chosen, ask, token, row_logits), row_logits, now)

    def _next(
        self, row: DecodingSequence, choose: Callable[[], int], logits: Floats | None, now: float
    ) -> None:
        """Gives a row the token that ``choose`` returns; if that goes wrong, it ends alone.

        ``logits [vocabulary]``: None for a row that tells nothing of them.
        """
        try:
            self._take(row, choose(), logits, now)
        except ConstraintError as error:
            self._end(row, Outcome.UNSATISFIABLE, now, failure=str(error))
        except Exception:
            log.exception("no token could be chosen")
            self._end(row, Outcome.FAILED, now, failure=NOT_CHOSEN)

    def _take(self, row: DecodingSequence, token: int, logits: Floats | None, now: float) -> None:
        group = self.of(row)
        if group.times.first_token is None:
            group.times.first_token = now
        outcome = row.append(token)
        if outcome is None and row.num_cached_tokens == self._max_length:
            outcome = Outcome.LENGTH
        logprobs: tuple[TokenLogprob, ...] = ()
        num_top = row.job.logprob_options.top_logprobs
        if num_top is not None and logits is not None:
            logprobs = (sampling.token_logprob(logits, token, num_top),)
        if outcome is None:
            updates = JobUpdate(group.id, (token,), output=row.output, logprobs=logprobs)
            self._updates.append(updates)
        else:
            self._end(row, outcome, now, tokens=(token,), logprobs=logprobs)

    def _branch(
        self,
        group: SequenceGroup,
        table: list[Floats],
        found: list[TopTokens],
        copies: list[SlotCopy],
        now: float,
    ) -> None:
        """``table``: logits of each row; ``copies`` gets what is to be copied in the end."""
        # A total is no number if one of its row is not, or all are forbidden.
        if not all(math.isfinite(likeliest.total) for likeliest in found):
            self._end_all(group, Outcome.FAILED, now, NOT_FINITE)
            return
        if group.times.first_token is None:
            group.times.first_token = now
        branching, before = Branching(group, self._rows, self._ids, copies), list(group.rows)
        try:
            if group.search is None:
                tokens = branching.split(table[0])
            else:
                self._updates += branching.search(table, found)
        except Exception as error:
            outcome, failure = Outcome.UNSATISFIABLE, str(error)
            if not isinstance(error, ConstraintError):
                log.exception("rows could not branch")
                outcome, failure = Outcome.FAILED, NOT_CHOSEN
            self._abandon(group, [*before, *branching.forked], outcome, now, failure)
            return
        for row in group.rows:
            self._group_of[row.id] = group
        if group.search is None:
            self._begin(group, tokens, table[0], now)
        elif group.search.is_over:
            self._end_search(group, now)
        else:
            self._ended += [row for row in before if row not in group.rows]

    def _begin(
        self, group: SequenceGroup, tokens: list[int] | None, logits: Floats, now: float
    ) -> None:
        """Gives the rows of a job that split their first token."""
        rows = list(group.rows)
        if tokens is None:
            table = HostLogits(np.tile(logits, (len(rows), 1)))
            self._choose(rows, range(len(rows)), table, now)
            return
        for row, token in zip(rows, tokens, strict=True):
            self._next(row, partial(int, token), logits, now)

    def _end(
        self,
        row: DecodingSequence,
        outcome: Outcome,
        now: float,
        *,
        tokens: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] = (),
        failure: str = "",
    ) -> None:
        """Ends a plain row: its caller is told, its slot is free when the step is over."""
        group = self.of(row)
        progress = group.end(row, outcome, now, tokens=tokens, logprobs=logprobs, failure=failure)
        self._updates.append(progress)
        self._ended.append(row)
        if outcome == Outcome.FAILED:
            self._rows.clear(row)
        if progress.is_last:
            del self._groups[group.id]

    def _fail(self, row: DecodingSequence, now: float, failure: str) -> None:
        if self.of(row).is_plain:
            self._end(row, Outcome.FAILED, now, failure=failure)
        else:
            self._end_all(self.of(row), Outcome.FAILED, now, failure)

    def _end_search(self, group: SequenceGroup, now: float) -> None:
        self._ended += group.rows
        self._updates += group.end_search(now)
        del self._groups[group.id]
        self._branching.pop(group.id, None)

    def _abandon(
        self,
        group: SequenceGroup,
        rows: Sequence[DecodingSequence],
        outcome: Outcome,
        now: float,
        failure: str,
    ) -> None:
        """Ends a group that was left in the middle of branching: ``rows`` are all it had or has."""
        for row in rows:
            self._group_of[row.id] = group
        group.rows = [row for row in rows if row.phase != Phase.ENDED]
        self._ended += [row for row in rows if row.phase == Phase.ENDED]
        self._end_all(group, outcome, now, failure)

    def _end_all(
        self, group: SequenceGroup, outcome: Outcome, now: float, failure: str = ""
    ) -> None:
        self._ended += group.rows
        if outcome == Outcome.FAILED:
            for row in group.rows:
                self._rows.clear(row)
        self._updates += group.end_all(outcome, now, failure)
        del self._groups[group.id]
        self._branching.pop(group.id, None)


def _overdue_outcome(row: DecodingSequence, now: float) -> Outcome:
    finish_by = row.job.finish_by
    if row.is_cancelled:
        return Outcome.CANCELLED
    if finish_by is not None and finish_by <= now:
        return Outcome.TIME_LIMIT
    return Outcome.DEADLINE


def _chosen(ask: SampleRequest, best: int, logits: Floats) -> int:
    """The next token of a row whose likeliest is ``best``, by its ``logits [vocabulary]``."""
    row = ask.row
    if row.is_plainly_greedy:
        return best
    adjusted = logits.copy()
    row.adjust(adjusted)
    if adjusted.max() == -np.inf:
        raise ConstraintError("no token is allowed")
    if row.generator is None:
        return int(adjusted.argmax())
    return sampling.sample(adjusted, row.job.sampling, ask.uniform)
