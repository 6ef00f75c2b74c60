"""Prefills prompts whose log-probabilities or attention the job wants: alone, in small chunks."""

import math

import numpy as np

from model.bundle import AttentionKind
from server.engine.decoding import sampling
from server.engine.decoding.logits import HostLogits
from server.engine.failures import NOT_FINITE
from server.engine.model_runner import ModelRunner
from server.engine.requests.sequence import DecodingSequence
from server.engine.sequence_group import SequenceGroup


def prefill_alone(
    runner: ModelRunner, group: SequenceGroup, sequence: DecodingSequence, slot: int, size: int
) -> HostLogits:
    """Runs the decoder over a prompt's next ``size`` tokens.

    Stores the requested log-probabilities or attention weights in ``group``.

    Returns:
        Logits ``[1, vocabulary]`` after the last of these tokens; zeros ``[1, 1]`` for a job that
        wants attention, which generates no tokens.

    Raises:
        ValueError: logits are not finite, or the model has no graph with attention weights.
    """
    selection = sequence.job.attention
    if selection is None:
        return _score(runner, group, sequence, slot, size)
    if selection.kind == AttentionKind.ENCODER:
        group.attention[:] = runner.attention.of_source(sequence, selection)
    else:
        group.attention.extend(runner.attention.of_prompt(sequence, slot, size, selection))
    return HostLogits(np.zeros((1, 1), np.float32))


def _score(
    runner: ModelRunner, group: SequenceGroup, sequence: DecodingSequence, slot: int, size: int
) -> HostLogits:
    """Stores the log-probability of each prompt token, given the tokens before it."""
    num_top = sequence.job.logprob_options.prompt_logprobs or 0
    start = sequence.num_cached_tokens + 1
    for logits, count in runner.decode_all(sequence, slot, size):
        targets = sequence.job.prompt[start : start + count]  # the last token has none
        given = [*targets, *[0] * (count - len(targets))]
        top = logits.top(range(count), max(num_top, 1), given)
        if top is None:
            rows = logits.rows(range(count))
            if not np.isfinite(rows.max(-1)).all():
                raise ValueError(NOT_FINITE.failure)
            found = [
                sampling.token_logprob(row, token, num_top)
                for row, token in zip(rows, targets, strict=False)
            ]
        else:
            if not all(math.isfinite(each.total) for each in top):
                raise ValueError(NOT_FINITE.failure)
            found = [
                sampling.logprob_in_top(each.target, each, num_top) for each in top[: len(targets)]
            ]
        group.prompt_logprobs += found
        start += count
    return HostLogits(logits.rows([count - 1]).copy())
