"""Chooses the next token of each sequence: on the device if a graph can, else on the host.

It changes no sequence: :class:`server.engine.job_table.JobTable` appends the tokens.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from server.constraint import Floats
from server.engine.decoding import sampling
from server.engine.decoding.logits import Logits, best_of
from server.engine.decoding.sampling import TokenLogprob
from server.engine.failures import NOT_FINITE, NoTokenError, selection_failure
from server.engine.gpu.device_sampler import DeviceSampler, SampleRequest
from server.engine.requests.lifecycle import Ending
from server.engine.requests.sequence import DecodingSequence, LogitsNeed
from server.runtime.host_ops import TopTokens


class NextToken(NamedTuple):
    """The token chosen for a sequence, or how the sequence ends because none could be chosen.

    ``logprobs``: the token's log-probability, if the job wants it.
    """

    sequence: DecodingSequence
    token: int | Ending
    logprobs: tuple[TokenLogprob, ...] = ()


class TokenSelector:
    """Chooses tokens.

    ``device_sampler``: chooses tokens on the device; None chooses all on the host.
    """

    def __init__(self, device_sampler: DeviceSampler | None = None) -> None:
        self._device_sampler = device_sampler

    def select(
        self, sequences: Sequence[DecodingSequence], indices: Sequence[int], logits: Logits
    ) -> list[NextToken]:
        """Chooses each sequence's next token. ``indices``: its row in ``logits``."""
        if logits.knows_best and all(s.logits_need is LogitsNeed.BEST for s in sequences):
            return _best(sequences, indices, logits)
        uniforms = _uniforms(sequences)
        if self._device_sampler is None:
            return _select_on_host(sequences, uniforms, indices, logits)
        requests = list(map(SampleRequest, indices, sequences, uniforms))
        tokens = self._device_sampler.sample(logits, requests)
        selected: list[NextToken] = []
        undecided: list[int] = []
        scored: dict[int, int] = {}  # chosen tokens whose log-probabilities are wanted
        for i, (sequence, token) in enumerate(zip(sequences, tokens, strict=True)):
            if token is None:
                undecided.append(i)
            elif sequence.job.logprob_options.top_logprobs is None:
                selected.append(NextToken(sequence, token))
            else:
                scored[i] = token
        if scored:
            by_row = {indices[i]: token for i, token in scored.items()}
            selected += _with_logprobs([sequences[i] for i in scored], by_row, logits)
        if undecided:
            sequences = [sequences[i] for i in undecided]
            uniforms = [uniforms[i] for i in undecided]
            indices = [indices[i] for i in undecided]
            selected += _select_on_host(sequences, uniforms, indices, logits)
        return selected

    def find_non_finite(self, indices: Sequence[int], logits: Logits) -> list[int]:
        """Returns the ``indices`` whose rows of ``logits`` are not finite."""
        if indices and self._device_sampler is not None:
            are_finite = self._device_sampler.are_finite(logits, indices)
            indices = [
                index for index, finite in zip(indices, are_finite, strict=True) if not finite
            ]
        return [index for index in indices if not np.isfinite(logits.rows([index]).max())]


def with_logprob(sequence: DecodingSequence, token: int, logits: Floats) -> NextToken:
    """Adds the log-probability that the job wants to a token that is already chosen.

    ``logits [vocabulary]``: finite.
    """
    num_top = sequence.job.logprob_options.top_logprobs
    if num_top is None:
        return NextToken(sequence, token)
    return NextToken(sequence, token, (sampling.token_logprob(logits, token, num_top),))


def _select_on_host(
    sequences: Sequence[DecodingSequence],
    uniforms: Sequence[float],
    indices: Sequence[int],
    logits: Logits,
) -> list[NextToken]:
    """Chooses tokens from the rows of ``logits`` at ``indices``.

    Sequences that need whole rows come first: finding the argmax of the others may reuse the memory
    of the rows.
    """
    need_best, need_top, need_rows = (
        [i for i, sequence in enumerate(sequences) if sequence.logits_need is need]
        for need in (LogitsNeed.BEST, LogitsNeed.TOP, LogitsNeed.ROWS)
    )
    selected: list[NextToken] = []
    if need_top:
        chosen = [sequences[i] for i in need_top]
        top = logits.top([indices[i] for i in need_top], _num_top(chosen))
        if top is None:
            need_rows = sorted([*need_rows, *need_top])
        else:
            tokens = [each.tokens[0] if each.tokens else None for each in top]
            selected += map(_with_top, chosen, tokens, top)
    if need_rows:
        rows = logits.rows([indices[i] for i in need_rows])
        for i, row, token in zip(need_rows, rows, best_of(rows), strict=True):
            selected.append(_from_row(sequences[i], row, token, uniforms[i]))
    if need_best:
        chosen = [sequences[i] for i in need_best]
        selected += _best(chosen, [indices[i] for i in need_best], logits)
    return selected


def _best(
    sequences: Sequence[DecodingSequence], indices: Sequence[int], logits: Logits
) -> list[NextToken]:
    """Chooses the likeliest tokens of sequences that need nothing else."""
    return [
        NextToken(sequence, NOT_FINITE if token is None else token)
        for sequence, token in zip(sequences, logits.best(indices), strict=True)
    ]


def _from_row(
    sequence: DecodingSequence, row: Floats, likeliest: int | None, uniform: float
) -> NextToken:
    """Chooses a token from its ``row`` of logits ``[vocabulary]``. An error ends only its sequence.

    ``likeliest``: the argmax of the row; None if the row is not finite.
    """
    if likeliest is None:
        return NextToken(sequence, NOT_FINITE)
    try:
        if sequence.logits_need is not LogitsNeed.ROWS:
            return with_logprob(sequence, likeliest, row)
        processed = row.copy()
        sequence.process_logits(processed)
        token = int(processed.argmax())
        if processed[token] == -np.inf:
            raise NoTokenError
        if sequence.generator is not None:
            token = sampling.sample(processed, sequence.job.sampling, uniform)
        are_processed = sequence.job.logprob_options.are_processed
        return with_logprob(sequence, token, processed if are_processed else row)
    except Exception as error:
        return NextToken(sequence, selection_failure(error))


def _with_logprobs(
    sequences: Sequence[DecodingSequence], tokens: dict[int, int], logits: Logits
) -> list[NextToken]:
    """Adds log-probabilities to tokens that are already chosen.

    ``tokens``: the token by row of ``logits``, in the order of the sequences.
    """
    indices, chosen = list(tokens), list(tokens.values())
    top = logits.top(indices, _num_top(sequences), chosen)
    if top is None:
        return list(map(with_logprob, sequences, chosen, logits.rows(indices)))
    return list(map(_with_top, sequences, chosen, top))


def _with_top(sequence: DecodingSequence, token: int | None, top: TopTokens) -> NextToken:
    """Adds the log-probability to a token: the target of ``top``, or else the likeliest one."""
    if token is None or not math.isfinite(top.total):
        return NextToken(sequence, NOT_FINITE)
    num_top = sequence.job.logprob_options.top_logprobs or 0
    return NextToken(sequence, token, (sampling.logprob_in_top(top.target, top, num_top),))


def _num_top(sequences: Sequence[DecodingSequence]) -> int:
    """Returns the most top tokens that one of the sequences wants, at least one."""
    return max(sequence.job.logprob_options.top_logprobs or 1 for sequence in sequences)


def _uniforms(sequences: Sequence[DecodingSequence]) -> list[float]:
    """Draws a random number in [0, 1) for each sequence that samples; 0 for the others."""
    return [
        0.0 if sequence.generator is None else sequence.generator.random() for sequence in sequences
    ]
