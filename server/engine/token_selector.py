"""The next token of each sequence, on the device where it can be chosen there, else on the host.

It knows sequences and logits, but no jobs: what a new token means for a job is for
:class:`server.engine.job_table.JobTable`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from server.constraint import ConstraintError, Floats
from server.engine.decoding import sampling
from server.engine.decoding.logits import Logits
from server.engine.decoding.sampling import TokenLogprob
from server.engine.failures import NO_TOKEN, NOT_FINITE, failure_of
from server.engine.gpu.device_sampler import DeviceSampler, SampleRequest
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.sequence import DecodingSequence


class NextToken(NamedTuple):
    """What a step adds to a sequence.

    ``token``: None if there is none, because the sequence ends without one. ``outcome``: how the
    sequence ends, None if it goes on. ``failure`` says what went wrong.
    """

    sequence: DecodingSequence
    token: int | None = None
    outcome: Outcome | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    failure: str = ""


class TokenSelector:
    """Chooses tokens and appends them.

    Args:
        max_length: tokens that a slot holds.
        device_sampler: chooses next to the logits; None leaves every choice to the host.
    """

    def __init__(self, max_length: int, device_sampler: DeviceSampler | None = None) -> None:
        self._max_length = max_length
        self._device_sampler = device_sampler

    def select(
        self, sequences: Sequence[DecodingSequence], indices: Sequence[int], logits: Logits
    ) -> list[NextToken]:
        """Gives each of ``sequences`` its next token, by the row of ``logits`` at its index."""
        uniforms = [
            0.0 if sequence.generator is None else sequence.generator.random()
            for sequence in sequences
        ]
        if self._device_sampler is None:
            return self._select_on_host(sequences, uniforms, logits.rows(indices))
        requests = list(map(SampleRequest, indices, sequences, uniforms))
        tokens = self._device_sampler.sample(logits, requests)
        selected = [
            self.append(sequence, token)
            for sequence, token in zip(sequences, tokens, strict=True)
            if token is not None
        ]
        left = [i for i, token in enumerate(tokens) if token is None]
        if left:
            rows = logits.rows([indices[i] for i in left])
            sequences, uniforms = [sequences[i] for i in left], [uniforms[i] for i in left]
            selected += self._select_on_host(sequences, uniforms, rows)
        return selected

    def append(
        self, sequence: DecodingSequence, token: int, logits: Floats | None = None
    ) -> NextToken:
        """Appends a token that is already chosen.

        ``logits [vocabulary]``: for log-probabilities; None if the sequence wants none.
        """
        return self._append(sequence, token, logits, uniform=None)

    def not_finite(self, indices: Sequence[int], logits: Logits) -> list[int]:
        """Those of ``indices`` whose row of ``logits`` is not finite."""
        if indices and self._device_sampler is not None:
            are_sure = self._device_sampler.finite(logits, indices)
            indices = [
                index for index, is_sure in zip(indices, are_sure, strict=True) if not is_sure
            ]
        return [index for index in indices if not np.isfinite(logits.rows([index]).max())]

    def _select_on_host(
        self, sequences: Sequence[DecodingSequence], uniforms: Sequence[float], logits: Floats
    ) -> list[NextToken]:
        """By ``logits [sequences, vocabulary]``."""
        selected = []
        for index, best in enumerate(greedy(logits)):
            sequence = sequences[index]
            if best is None:
                selected.append(NextToken(sequence, None, Outcome.FAILED, failure=NOT_FINITE))
            else:
                uniform = None if sequence.takes_argmax else uniforms[index]
                selected.append(self._append(sequence, best, logits[index], uniform))
        return selected

    def _append(
        self,
        sequence: DecodingSequence,
        token: int,
        logits: Floats | None,
        uniform: float | None,
    ) -> NextToken:
        """Appends ``token`` or, given a ``uniform`` random number, one chosen by the options.

        An error ends this sequence alone.
        """
        try:
            if uniform is not None and logits is not None:
                token = choose(sequence, logits, uniform)
            outcome = sequence.append(token)
            if outcome is None and sequence.num_cached_tokens == self._max_length:
                outcome = Outcome.LENGTH
            num_top = sequence.job.logprob_options.top_logprobs
            if num_top is None or logits is None:
                return NextToken(sequence, token, outcome)
            logprob = sampling.token_logprob(logits, token, num_top)
            return NextToken(sequence, token, outcome, (logprob,))
        except Exception as error:
            outcome, message = failure_of(error)
            return NextToken(sequence, None, outcome, failure=message)


def greedy(logits: Floats) -> list[int | None]:
    """The likeliest token of each row of ``[rows, vocabulary]``; None where a row is not finite.

    NumPy's argmax returns the place of a NaN or an infinity, if there is one.
    """
    best = logits.argmax(axis=-1)
    values = logits[np.arange(len(best)), best]
    tokens: list[int | None] = best.tolist()
    if not np.isfinite(values).all():
        finite = np.isfinite(values)
        return [token if good else None for token, good in zip(tokens, finite, strict=True)]
    return tokens


def choose(sequence: DecodingSequence, logits: Floats, uniform: float) -> int:
    """The next token by all options of a sequence.

    Args:
        sequence: whose options and tokens count.
        logits: ``[vocabulary]``, finite; left unchanged.
        uniform: a random number from 0 to 1, without 1.

    Raises:
        ConstraintError: no token is allowed.
    """
    processed = logits.copy()
    sequence.process_logits(processed)
    if processed.max() == -np.inf:
        raise ConstraintError(NO_TOKEN)
    if sequence.generator is None:
        return int(processed.argmax())
    return sampling.sample(processed, sequence.job.sampling, uniform)
