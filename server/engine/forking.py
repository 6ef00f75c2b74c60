"""Forks a job's sequences at the end of a step, for samples, alternatives and beams."""

import math
from collections.abc import Sequence

import numpy as np

from server.constraint import Floats
from server.engine.cache.prefix_cache import common_prefix
from server.engine.cache.slot_store import SlotCopy, SlotStore
from server.engine.decoding import sampling
from server.engine.decoding.beam import BeamSearch, Branch
from server.engine.decoding.logits import HostLogits, Logits
from server.engine.decoding.sampling import TokenLogprob
from server.engine.failures import NOT_FINITE, NoTokenError, selection_failure
from server.engine.fork_logits import Found, read_for_forks
from server.engine.job_table import JobTable
from server.engine.requests.job import Delivery
from server.engine.requests.lifecycle import Ending, Event, Outcome
from server.engine.requests.sequence import DecodingSequence
from server.engine.requests.update import JobUpdate
from server.engine.sequence_group import SequenceGroup
from server.engine.token_selector import TokenSelector, with_logprob
from server.runtime import host_ops
from server.runtime.host_ops import TopTokens


class Forking:
    """Collects the logits of sequences to fork, and forks them after all runs of a step.

    Args:
        jobs: the table of all jobs.
        slots: the cache of the running sequences; a fork copies a slot.
        selector: chooses the first token of each sample.

    Attributes:
        pending: by job id, the group and the logits of its sequences, by sequence id.
    """

    def __init__(self, jobs: JobTable, slots: SlotStore, selector: TokenSelector) -> None:
        self._jobs = jobs
        self._slots = slots
        self._selector = selector
        self.pending: dict[int, tuple[SequenceGroup, dict[int, Found]]] = {}
        self._copies: list[SlotCopy] = []

    def add(
        self, sequences: Sequence[DecodingSequence], rows: Sequence[int], logits: Logits
    ) -> None:
        """Adds sequences to fork. ``rows``: the row of each in ``logits``."""
        groups = [self._jobs.group_of(sequence) for sequence in sequences]
        found = read_for_forks(groups, sequences, rows, logits)
        for group, sequence, each in zip(groups, sequences, found, strict=True):
            self.pending.setdefault(group.id, (group, {}))[1][sequence.id] = each

    def run(self, now: float) -> None:
        """Forks all added sequences, except those whose job has ended since."""
        pending = [
            (group, [found[sequence.id] for sequence in group.sequences])
            for group, found in self.pending.values()
            if group.sequences
        ]
        self.pending.clear()
        if not pending:
            return
        # One call for all rows, and one for all copies: fewer waits for the interpreter lock.
        count = max(
            (g.search.num_candidates for g, _ in pending if g.search is not None), default=0
        )
        rows = [row for _, found in pending for row in found if isinstance(row, np.ndarray)]
        top_tokens = iter(host_ops.top_tokens_of(rows, count) if rows else ())
        for group, found in pending:
            top = [each if isinstance(each, TopTokens) else next(top_tokens) for each in found]
            self._fork_group(group, found, top, now)
        self._slots.copy(self._copies)
        self._copies = []

    def discard(self) -> None:
        """Drops the sequences and copies that are left after :meth:`run` raised."""
        self.pending.clear()
        self._copies = []

    def _fork_group(
        self, group: SequenceGroup, found: list[Found], top_tokens: list[TopTokens], now: float
    ) -> None:
        """Forks one job's sequences. ``found`` and ``top_tokens`` have one item for each."""
        # The total is not finite if one of the logits is not, or if all tokens are forbidden.
        if not all(math.isfinite(top.total) for top in top_tokens):
            self._jobs.end_job(group, NOT_FINITE, now)
            return
        if group.times.first_token is None:
            group.times.first_token = now
        before = list(group.sequences)
        forked: list[DecodingSequence] = []
        try:
            if group.search is None:
                tokens = self._fork_outputs(group, _logits(found[0]), forked)
            else:
                self._advance_search(group, group.search, found, top_tokens, forked, now)
        except Exception as error:
            ending = selection_failure(error)
            group.sequences = [*before, *forked]
            self._jobs.replace_sequences(group, [s for s in group.sequences if s.is_live])
            self._jobs.end_job(group, ending, now)
            return
        if group.search is None:
            self._append_first_tokens(group, tokens, _logits(found[0]), now)
        elif group.search.is_over:
            self._jobs.end_job(group, Ending(Outcome.STOP), now)

    def _fork_outputs(
        self, group: SequenceGroup, logits: Floats, forked: list[DecodingSequence]
    ) -> list[int] | None:
        """Forks the sequence that prefilled the prompt into one sequence for each output.

        Args:
            group: a group with one sequence.
            logits: the logits ``[vocabulary]`` after the prompt.
            forked: receives the new sequences.

        Returns:
            The first token of each alternative; None if the outputs are samples.

        Raises:
            NoTokenError: no token is allowed.
        """
        (first,), count = group.sequences, group.job.num_outputs
        tokens = None
        if group.job.alternatives:
            processed = logits.copy()
            first.process_logits(processed)
            likeliest = host_ops.top_indices(processed, count)
            tokens = [int(id_) for id_ in likeliest if processed[id_] > -np.inf]
            if not tokens:
                raise NoTokenError
            count = group.num_live_outputs = len(tokens)
        first.num_reserved_slots = 0
        for output in range(1, count):
            forked.append(self._jobs.fork(first, output))
        group.sequences = [first, *forked]
        group.is_independent = True
        return tokens

    def _append_first_tokens(
        self, group: SequenceGroup, tokens: list[int] | None, logits: Floats, now: float
    ) -> None:
        """Appends each output's first token: from ``tokens``; if None, sampled from ``logits``."""
        sequences = list(group.sequences)
        if tokens is None:
            rows = HostLogits(np.tile(logits, (len(sequences), 1)))
            selected = self._selector.select(sequences, range(len(sequences)), rows)
        else:
            selected = [
                with_logprob(sequence, token, logits)
                for sequence, token in zip(sequences, tokens, strict=True)
            ]
        for next_token in selected:
            self._jobs.record(next_token, now)

    def _advance_search(
        self,
        group: SequenceGroup,
        search: BeamSearch,
        found: Sequence[Found],
        top_tokens: Sequence[TopTokens],
        forked: list[DecodingSequence],
        now: float,
    ) -> None:
        """Takes one step of a beam search. Publishes the tokens on which all hypotheses agree.

        Args:
            group: its sequences become the live hypotheses, best first, unless the search is over.
            search: the group's search.
            found: the logits, or likeliest tokens, of each sequence.
            top_tokens: at least ``search.num_candidates`` likeliest tokens of each sequence.
            forked: receives the new sequences.
            now: the current time in seconds.
        """
        candidates = [
            _processed_top_tokens(sequence, each, search.num_candidates)
            if isinstance(each, np.ndarray) and sequence.changes_logits
            else top
            for sequence, each, top in zip(group.sequences, found, top_tokens, strict=True)
        ]
        branches = search.advance(candidates)
        if not branches:
            return
        length = group.agree(search.agree_further(), now)
        if length is not None:
            search.end_at(length)
            return
        live = self._assign_branches(group, branches, forked)
        if group.job.delivery != Delivery.WHOLE:
            self._publish_agreed(group, search)
        self._jobs.replace_sequences(group, live)

    def _publish_agreed(self, group: SequenceGroup, search: BeamSearch) -> None:
        start, end = group.num_published_tokens, search.num_agreed
        if start == end:
            return
        group.num_published_tokens = end
        best, logprobs = search.live[0], tuple[TokenLogprob, ...]()
        if group.job.logprob_options.top_logprobs is not None:
            logprobs = tuple(map(TokenLogprob, best.logprobs[start:end]))
        times = tuple(group.agreed_times[start:])
        tokens = best.tokens[start:end]
        update = JobUpdate(group.id, tokens, logprobs=logprobs, token_times=times)
        self._jobs.publish(update)

    def _assign_branches(
        self, group: SequenceGroup, branches: list[Branch], forked: list[DecodingSequence]
    ) -> list[DecodingSequence]:
        """Assigns each branch its parent's sequence, that of a dropped hypothesis, or a new one."""
        parents = group.sequences
        first_branch: dict[int, int] = {}  # by parent: the branch that continues its sequence
        for index, branch in enumerate(branches):
            first_branch.setdefault(branch.parent, index)
        dropped = [sequence for index, sequence in enumerate(parents) if index not in first_branch]
        live = []
        for index, (parent_index, _) in enumerate(branches):
            parent = parents[parent_index]
            if first_branch[parent_index] == index:
                live.append(parent)
            elif dropped:
                target = dropped.pop()
                self._overwrite(target, parent)
                live.append(target)
            else:
                forked.append(self._jobs.fork(parent, 0))
                live.append(forked[-1])
        for sequence in dropped:
            sequence.on(Event.FINISH)
        for sequence, (_, token) in zip(live, branches, strict=True):
            sequence.append(token)
            sequence.num_reserved_slots = 0
        live[0].num_reserved_slots = group.job.num_sequences - len(live)
        return live

    def _overwrite(self, target: DecodingSequence, parent: DecodingSequence) -> None:
        """Makes ``target`` a copy of ``parent``; copies only the part of the cache that differs."""
        shared = common_prefix(parent.tokens, target.tokens, parent.num_cached_tokens)
        self._copies.append(SlotCopy(parent, target, shared))
        target.tokens = list(parent.tokens)
        target.constraint = None if parent.constraint is None else parent.constraint.fork()


def _logits(found: Found) -> Floats:
    """Returns the whole logits. Raises ``TypeError`` if only the likeliest tokens were read."""
    if isinstance(found, TopTokens):
        raise TypeError("only the likeliest tokens were kept")
    return found


def _processed_top_tokens(sequence: DecodingSequence, logits: Floats, count: int) -> TopTokens:
    if sequence.job.logprob_options.are_processed:
        processed = logits.copy()
        sequence.process_logits(processed)
        return host_ops.top_tokens(processed, count, host_ops.log_sum_exp(processed))
    log_probs = sampling.log_probabilities(logits)
    sequence.process_logits(log_probs)
    return host_ops.top_tokens(log_probs, count)
