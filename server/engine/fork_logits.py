"""What forks need of a run's logits: of a search the likeliest tokens, else the whole row."""

from collections.abc import Collection, Sequence

from server.constraint import Floats
from server.engine.decoding.logits import Logits
from server.engine.decoding.logits_processors import EditKind
from server.engine.requests.sequence import DecodingSequence
from server.engine.sequence_group import SequenceGroup
from server.runtime.host_ops import TopTokens

Found = Floats | TopTokens
"""Logits ``[vocabulary]`` after a sequence, or their likeliest tokens if it needs no more."""


def find(
    groups: Sequence[SequenceGroup],
    sequences: Sequence[DecodingSequence],
    rows: Sequence[int],
    logits: Logits,
) -> list[Found]:
    """What each sequence needs, valid until it runs again.

    A device then copies only the likeliest tokens to the host, without those that are forbidden.

    Args:
        groups: of each sequence.
        rows: of ``logits``, one for each sequence.
    """
    forbidden = list(map(_forbidden_tokens, groups, sequences))
    by_top = [index for index, tokens in enumerate(forbidden) if tokens is not None]
    count = max((_num_top(groups[i], forbidden[i] or ()) for i in by_top), default=0)
    top = logits.top([rows[index] for index in by_top], count) if count else None
    found: dict[int, Found] = {}
    if top is not None:
        for index, each in zip(by_top, top, strict=True):
            found[index] = _without(each, forbidden[index] or ())
    whole = [index for index in range(len(rows)) if index not in found]
    if whole:
        kept = logits.kept_rows([rows[index] for index in whole])
        found.update(zip(whole, kept, strict=True))
    return [found[index] for index in range(len(rows))]


def _forbidden_tokens(group: SequenceGroup, sequence: DecodingSequence) -> set[int] | None:
    """Tokens that the next one may not be, of a search; None if it needs all logits."""
    if group.search is None or sequence.constraint is not None:
        return None
    if not sequence.logits_processors:
        return set()
    edits = sequence.edits
    if sequence.job.logprob_options.are_processed or any(
        edit.kind != EditKind.FORBIDDEN for edit in edits
    ):
        return None
    return {id_ for edit in edits for id_ in edit.ids.tolist()}


def _num_top(group: SequenceGroup, forbidden: Collection[int]) -> int:
    """How many of the likeliest tokens a search needs, some of which may be forbidden."""
    return (0 if group.search is None else group.search.num_candidates) + len(forbidden)


def _without(top: TopTokens, forbidden: Collection[int]) -> TopTokens:
    if not forbidden:
        return top
    pairs = zip(top.tokens, top.logprobs, strict=True)
    kept = [(token, logprob) for token, logprob in pairs if token not in forbidden]
    return top._replace(
        tokens=[token for token, _ in kept], logprobs=[logprob for _, logprob in kept]
    )
