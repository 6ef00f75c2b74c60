"""Samples, alternatives and beams: how the sequences of a job fork at the end of a step."""

import math
from collections.abc import Sequence
from itertools import islice

import numpy as np

from server.constraint import ConstraintError, Floats
from server.engine.cache.prefix_cache import common_prefix
from server.engine.cache.slot_store import SlotCopy, SlotStore
from server.engine.decoding import sampling
from server.engine.decoding.beam import BeamSearch, Branch
from server.engine.decoding.logits import HostLogits
from server.engine.decoding.sampling import TokenLogprob
from server.engine.failures import NO_TOKEN, NOT_FINITE, failure_of
from server.engine.job_table import JobTable, SequenceGroup
from server.engine.requests.lifecycle import Event, Outcome
from server.engine.requests.sequence import DecodingSequence
from server.engine.requests.update import JobUpdate
from server.engine.token_selector import TokenSelector
from server.runtime import host_ops
from server.runtime.host_ops import TopTokens


class Forking:
    """Collects the logits of sequences that fork, and forks them when all runs are over.

    Args:
        jobs: the table of all jobs.
        slots: of the running sequences; a fork copies one.
        selector: chooses the first token of each sample.

    Attributes:
        pending: by job, the group and the logits ``[vocabulary]`` of its sequences.
    """

    def __init__(self, jobs: JobTable, slots: SlotStore, selector: TokenSelector) -> None:
        self._jobs = jobs
        self._slots = slots
        self._selector = selector
        self.pending: dict[int, tuple[SequenceGroup, dict[int, Floats]]] = {}
        self._copies: list[SlotCopy] = []

    def add(self, group: SequenceGroup, sequence: DecodingSequence, logits: Floats) -> None:
        """``sequence`` is to fork. Its ``logits [vocabulary]`` stay valid until :meth:`run`."""
        self.pending.setdefault(group.id, (group, {}))[1][sequence.id] = logits

    def run(self, now: float) -> None:
        """Forks the sequences of all jobs that were added and did not end since."""
        tables = [
            (group, [logits[sequence.id] for sequence in group.sequences])
            for group, logits in self.pending.values()
            if group.sequences
        ]
        self.pending.clear()
        if not tables:
            return
        # All rows in one call, and all copies in one: lanes wait for each other less often.
        count = max((g.search.num_candidates for g, _ in tables if g.search is not None), default=0)
        found = iter(host_ops.top_tokens_of([row for _, table in tables for row in table], count))
        for group, table in tables:
            self._fork_group(group, table, list(islice(found, len(table))), now)
        self._slots.copy(self._copies)
        self._copies = []

    def _fork_group(
        self, group: SequenceGroup, table: list[Floats], found: list[TopTokens], now: float
    ) -> None:
        """``table``: logits of each sequence; ``found``: its likeliest tokens."""
        # The total is not finite if one of its logits is not, or if all tokens are forbidden.
        if not all(math.isfinite(top.total) for top in found):
            self._jobs.finish(group, Outcome.FAILED, now, NOT_FINITE)
            return
        if group.times.first_token is None:
            group.times.first_token = now
        before = list(group.sequences)
        forked: list[DecodingSequence] = []
        try:
            if group.search is None:
                tokens = self._split(group, table[0], forked)
            else:
                self._search(group, group.search, table, found, forked)
        except Exception as error:
            outcome, message = failure_of(error)
            group.sequences = [*before, *forked]
            self._jobs.replace_sequences(group, [s for s in group.sequences if s.is_live])
            self._jobs.finish(group, outcome, now, message)
            return
        if group.search is None:
            self._begin(group, tokens, table[0], now)
        elif group.search.is_over:
            self._jobs.finish(group, Outcome.STOP, now)

    def _split(
        self, group: SequenceGroup, logits: Floats, forked: list[DecodingSequence]
    ) -> list[int] | None:
        """The sequence that read the prompt becomes one for each output; from then they differ.

        Args:
            group: of one sequence.
            logits: ``[vocabulary]`` after the prompt.
            forked: gets the new sequences.

        Returns:
            The first token of each, for alternatives; None if each is to be sampled.

        Raises:
            ConstraintError: no token is allowed.
        """
        (first,), count = group.sequences, group.job.num_outputs
        tokens = None
        if group.job.alternatives:
            processed = logits.copy()
            first.process_logits(processed)
            likeliest = host_ops.top_indices(processed, count)
            tokens = [int(id_) for id_ in likeliest if processed[id_] > -np.inf]
            if not tokens:
                raise ConstraintError(NO_TOKEN)
            count = group.num_open_outputs = len(tokens)
        first.num_reserved_slots = 0
        for output in range(1, count):
            forked.append(self._jobs.fork(first, output))
        group.sequences = [first, *forked]
        group.is_independent = True
        return tokens

    def _begin(
        self, group: SequenceGroup, tokens: list[int] | None, logits: Floats, now: float
    ) -> None:
        """Gives the sequences of a job that split their first token."""
        sequences = list(group.sequences)
        if tokens is None:
            table = HostLogits(np.tile(logits, (len(sequences), 1)))
            selected = self._selector.select(sequences, range(len(sequences)), table)
        else:
            selected = [
                self._selector.append(sequence, token, logits)
                for sequence, token in zip(sequences, tokens, strict=True)
            ]
        for each in selected:
            self._jobs.record(each, now)

    def _search(
        self,
        group: SequenceGroup,
        search: BeamSearch,
        table: Sequence[Floats],
        found: Sequence[TopTokens],
        forked: list[DecodingSequence],
    ) -> None:
        """One step of a beam search. Publishes the tokens on which all hypotheses agree.

        Args:
            group: whose sequences become the live hypotheses, best first; they stay what they are
                if the search is over.
            search: of the group.
            table: logits ``[vocabulary]`` of each sequence.
            found: of each, as many likeliest tokens as the search looks at or more.
            forked: gets the new sequences.
        """
        candidates = [
            _processed_top_tokens(sequence, logits, search.num_candidates)
            if sequence.logits_processors or sequence.constraint is not None
            else top
            for sequence, logits, top in zip(group.sequences, table, found, strict=True)
        ]
        branches = search.advance(candidates)
        if not branches:
            return
        after = self._rearrange(group, branches, forked)
        agreed, start = search.agreed(), group.num_published_tokens
        if len(agreed) > start:
            group.num_published_tokens = len(agreed)
            logprobs: tuple[TokenLogprob, ...] = ()
            if group.job.logprob_options.top_logprobs is not None:
                logprobs = tuple(map(TokenLogprob, search.live[0].logprobs[start : len(agreed)]))
            self._jobs.publish(JobUpdate(group.id, agreed[start:], logprobs=logprobs))
        self._jobs.replace_sequences(group, after)

    def _rearrange(
        self, group: SequenceGroup, branches: list[Branch], forked: list[DecodingSequence]
    ) -> list[DecodingSequence]:
        """The sequence of each branch: its parent, that of a dropped hypothesis, or a new one."""
        parents = group.sequences
        heirs: dict[int, int] = {}  # the first branch of each parent continues its sequence
        for index, branch in enumerate(branches):
            heirs.setdefault(branch.parent, index)
        dropped = [sequence for index, sequence in enumerate(parents) if index not in heirs]
        after = []
        for index, (parent_index, _) in enumerate(branches):
            parent = parents[parent_index]
            if heirs[parent_index] == index:
                after.append(parent)
            elif dropped:
                target = dropped.pop()
                self._overwrite(target, parent)
                after.append(target)
            else:
                forked.append(self._jobs.fork(parent, 0))
                after.append(forked[-1])
        for sequence in dropped:
            sequence.on(Event.FINISH)
        for sequence, (_, token) in zip(after, branches, strict=True):
            sequence.append(token)
            sequence.num_reserved_slots = 0
        after[0].num_reserved_slots = group.job.num_sequences - len(after)
        return after

    def _overwrite(self, target: DecodingSequence, parent: DecodingSequence) -> None:
        """``target`` continues ``parent``; the part of the cache that differs is copied."""
        shared = common_prefix(parent.tokens, target.tokens, parent.num_cached_tokens)
        self._copies.append(SlotCopy(parent, target, shared))
        target.tokens = list(parent.tokens)
        target.constraint = None if parent.constraint is None else parent.constraint.fork()


def _processed_top_tokens(sequence: DecodingSequence, logits: Floats, count: int) -> TopTokens:
    log_probs = sampling.log_probabilities(logits)
    sequence.process_logits(log_probs)
    return host_ops.top_tokens(log_probs, count)
