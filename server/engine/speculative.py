"""Speculative decoding: one run of the decoder over the next token of a sequence and a draft.

The tokens are those of single runs: a drafted token counts only where it is the likeliest one
(Leviathan et al. 2022, for greedy decoding).
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from server.engine.failures import NOT_FINITE
from server.engine.model_runner import ModelRunner
from server.engine.requests.sequence import DecodingSequence
from server.engine.run_inputs import next_chunk


class VerifiedTokens(NamedTuple):
    """The next tokens of one sequence, at least one, from a run over its next token and a draft.

    All but the last were drafted. The last is None if its logits are not finite.
    """

    tokens: Sequence[int | None]


def verify(
    runner: ModelRunner, sequence: DecodingSequence, slot: int, draft: Sequence[int]
) -> VerifiedTokens:
    """Runs the decoder over a sequence's next token and ``draft``.

    The keys and values of the tokens that are not accepted stay after those that count as cached,
    where the next run overwrites them.

    Args:
        runner: runs the model, which has no recurrent states.
        sequence: a sequence that decodes the likeliest tokens.
        slot: the slot of ``sequence``, which has room for the draft too.
        draft: tokens that may follow; any number.

    Raises:
        Exception: the run failed, or its first logits are not finite and there is a draft. A call
            without a draft may still succeed.
    """
    if not draft:
        return VerifiedTokens(runner.decode([next_chunk(sequence, 1)], slot).best([0]))
    best: list[int | None] = []
    sequence.tokens += draft  # for the run only
    try:
        for logits, count in runner.decode_all(sequence, slot, 1 + len(draft)):
            best += logits.best(range(count))
    finally:
        del sequence.tokens[-len(draft) :]
    tokens = accepted(best, draft, sequence.job.eos)
    if not tokens:
        raise ValueError(NOT_FINITE.failure)
    return VerifiedTokens(tokens)


def accepted(best: Sequence[int | None], draft: Sequence[int], eos: Collection[int]) -> list[int]:
    """Returns the tokens that single runs would choose, as far as the draft tells.

    Args:
        best: the likeliest tokens before, between and after those of ``draft``: one more. None if
            the logits are not finite.
        draft: the drafted tokens.
        eos: tokens after which there are no others.
    """
    tokens: list[int] = []
    for token, drafted in zip(best, [*draft, None], strict=True):
        if token is None:
            break
        tokens.append(token)
        if token != drafted or token in eos:
            break
    return tokens
