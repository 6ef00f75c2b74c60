"""Reads the logits that a fork needs: a beam search's likeliest tokens, else whole rows."""

from collections.abc import Collection, Sequence

from server.constraint import Floats
from server.engine.decoding.logits import MAX_TOP, Logits
from server.engine.decoding.logits_processors import EditKind
from server.engine.requests.sequence import DecodingSequence
from server.engine.sequence_group import SequenceGroup
from server.runtime.host_ops import TopTokens

Found = Floats | TopTokens
"""A sequence's logits ``[vocabulary]``, or only the likeliest tokens if they suffice."""


def read_for_forks(
    groups: Sequence[SequenceGroup],
    sequences: Sequence[DecodingSequence],
    rows: Sequence[int],
    logits: Logits,
) -> list[Found]:
    """Reads the logits that each sequence needs, valid until it runs again; copies few of them.

    Args:
        groups: the group of each sequence.
        sequences: the sequences to fork.
        rows: the row of each sequence in ``logits``.
        logits: the logits of a run.
    """
    forbidden: dict[int, set[int]] = {}  # by index: the sequences whose likeliest tokens suffice
    num_needed = 0
    if logits.finds_top:
        for index, (group, sequence) in enumerate(zip(groups, sequences, strict=True)):
            if group.search is None or (tokens := _forbidden_tokens(sequence)) is None:
                continue
            count = group.search.num_candidates + len(tokens)
            if count <= MAX_TOP:
                forbidden[index] = tokens
                num_needed = max(num_needed, count)
    top = logits.top([rows[index] for index in forbidden], num_needed) if forbidden else None
    found: dict[int, Found] = {}
    if top is not None:
        for (index, tokens), each in zip(forbidden.items(), top, strict=True):
            found[index] = _without(each, tokens)
    whole = [index for index in range(len(rows)) if index not in found]
    if whole:
        kept = logits.kept_rows([rows[index] for index in whole])
        found.update(zip(whole, kept, strict=True))
    return [found[index] for index in range(len(rows))]


def _forbidden_tokens(sequence: DecodingSequence) -> set[int] | None:
    """Returns the tokens that a search may not take next; None if it needs all logits."""
    if sequence.constraint is not None:
        return None
    if not sequence.logits_processors:
        return set()
    if sequence.job.logprob_options.are_processed:
        return None
    edits = sequence.edits
    if any(edit.kind != EditKind.FORBIDDEN for edit in edits):
        return None
    return {id_ for edit in edits for id_ in edit.ids.tolist()}


def _without(top: TopTokens, forbidden: Collection[int]) -> TopTokens:
    if not forbidden:
        return top
    pairs = zip(top.tokens, top.logprobs, strict=True)
    kept = [(token, logprob) for token, logprob in pairs if token not in forbidden]
    return top._replace(
        tokens=[token for token, _ in kept], logprobs=[logprob for _, logprob in kept]
    )
