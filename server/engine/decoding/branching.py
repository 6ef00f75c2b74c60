"""How the rows of a job become the next ones: samples, alternatives, a step of a beam search."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from server.engine.cache.prefix_cache import common_prefix
from server.engine.cache.row_store import SlotCopy, SlotStore
from server.engine.decoding import sampling
from server.engine.decoding.beam import Branch, TopTokens
from server.engine.decoding.logits_processors import ConstraintError
from server.engine.decoding.sampling import TokenLogprob
from server.engine.requests.lifecycle import Event
from server.engine.requests.sequence import DecodingSequence, Floats, JobUpdate
from server.engine.requests.sequence_group import SequenceGroup


@dataclass(frozen=True, slots=True)
class Branching:
    """Forks and reorders rows, after all runs of a step. ``ids`` are of new sequences.

    ``copies`` gets what is to be copied between rows when all groups have branched.
    ``forked``: the rows that it made so far. They are the group's when it is done; if it
    raises, they are to be released with the rest.
    """

    group: SequenceGroup
    rows: SlotStore
    ids: Iterator[int]
    copies: list[SlotCopy]
    forked: list[DecodingSequence] = field(default_factory=list)

    def split(self, logits: Floats) -> list[int] | None:
        """The prompt's row becomes one for each output, which then go their own ways.

        Args:
            logits: ``[vocabulary]`` after the prompt.

        Returns:
            The first token of each of ``group.rows``, or None if they choose it themselves.
        """
        group, (first,) = self.group, self.group.rows
        tokens, count = None, group.job.num_outputs
        if group.job.alternatives:
            adjusted = logits.copy()
            first.adjust(adjusted)
            tokens = [
                int(id_) for id_ in sampling.top_indices(adjusted, count) if adjusted[id_] > -np.inf
            ]
            if not tokens:
                raise ConstraintError("no token is allowed")
            count = group.num_open_outputs = len(tokens)
        first.num_reserved_rows = 0
        for output in range(1, count):
            group.rows.append(self._fork(first, output))
        group.has_branched = True
        return tokens

    def search(self, logits: Sequence[Floats], likeliest: Sequence[TopTokens]) -> list[JobUpdate]:
        """One step of the group's beam search.

        Args:
            logits: ``[vocabulary]`` each, in the order of ``group.rows``.
            likeliest: of each, as many as the search looks at or more.

        Returns:
            News of the best hypothesis: the tokens on which all now agree. ``group.rows`` is
            empty if the search is over; else it holds the live hypotheses, best first.
        """
        group, search = self.group, self.group.search
        if search is None:
            raise ValueError("this job has no search")
        count = search.num_candidates
        candidates = [
            _adjusted(row, values, count)
            if row.logits_processors or row.constraint is not None
            else found
            for row, values, found in zip(group.rows, logits, likeliest, strict=True)
        ]
        branches = search.advance(candidates)
        if not branches:
            return []
        self._rearrange(branches)
        agreed, told = search.agreed(), group.num_told_tokens
        if len(agreed) == told:
            return []
        group.num_told_tokens = len(agreed)
        logprobs: tuple[TokenLogprob, ...] = ()
        if group.job.logprob_options.top_logprobs is not None:
            values = search.live[0].logprobs[told : len(agreed)]
            logprobs = tuple(TokenLogprob(value) for value in values)
        return [JobUpdate(group.id, agreed[told:], logprobs=logprobs)]

    def _rearrange(self, branches: list[Branch]) -> None:
        """Each branch gets a row with its parent's content: its own, a dead one's, or a new one."""
        group, parents = self.group, self.group.rows
        heirs: dict[int, int] = {}  # the first branch of each parent keeps its row
        for index, branch in enumerate(branches):
            heirs.setdefault(branch.parent, index)
        dead = [row for index, row in enumerate(parents) if index not in heirs]
        after = []
        for index, (parent_index, _) in enumerate(branches):
            parent = parents[parent_index]
            if heirs[parent_index] == index:
                after.append(parent)
            elif dead:
                target = dead.pop()
                num_cached = parent.num_cached_tokens
                shared = common_prefix(parent.tokens, target.tokens, num_cached)
                self.copies.append(SlotCopy(parent, target, shared))
                target.tokens = list(parent.tokens)
                target.constraint = None if parent.constraint is None else parent.constraint.fork()
                after.append(target)
            else:
                after.append(self._fork(parent, 0))
        for row in dead:
            row.on(Event.END)
        for row, (_, token) in zip(after, branches, strict=True):
            row.append(token)
            row.num_reserved_rows = 0
        after[0].num_reserved_rows = group.job.num_rows - len(after)
        group.rows = after

    def _fork(self, parent: DecodingSequence, output: int) -> DecodingSequence:
        child = parent.fork(next(self.ids), output)
        self.rows.fork(parent, child)
        self.forked.append(child)
        return child


def _adjusted(row: DecodingSequence, logits: Floats, count: int) -> TopTokens:
    log_probs = sampling.log_probabilities(logits)
    row.adjust(log_probs)
    return sampling.top_tokens(log_probs, count)
