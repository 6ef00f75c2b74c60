"""Prefill of prompts whose log-probabilities or attention the job wants: alone, in small chunks."""

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
        Logits ``[1, vocabulary]`` after the last of them; zeros for a job that wants attention,
        which generates no tokens.

    Raises:
        ValueError: logits are not finite, or the model has no graph with attention weights.
    """
    selection = sequence.job.logprob_options.attention
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
    index = sequence.num_cached_tokens
    for logits in runner.decode_all(sequence, slot, size):
        for after in logits:
            if not np.isfinite(after.max()):
                raise ValueError(NOT_FINITE)
            index += 1
            if index < len(sequence.job.prompt):
                logprob = sampling.token_logprob(after, sequence.tokens[index], num_top)
                group.prompt_logprobs.append(logprob)
    return HostLogits(logits[-1:])
