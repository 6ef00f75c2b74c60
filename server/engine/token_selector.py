"""Selects the next token of each sequence: on the device if a graph can, else on the host.

It handles sequences and logits, not jobs: :class:`server.engine.job_table.JobTable` publishes new
tokens and ends outputs.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from server.constraint import Floats
from server.engine.decoding import sampling
from server.engine.decoding.logits import Logits, greedy
from server.engine.decoding.sampling import TokenLogprob
from server.engine.failures import NOT_FINITE, Failure, NoTokenError, selection_failure
from server.engine.gpu.device_sampler import DeviceSampler, SampleRequest
from server.engine.requests.lifecycle import Outcome
from server.engine.requests.sequence import DecodingSequence
from server.runtime.host_ops import TopTokens


class NextToken(NamedTuple):
    """The token that a step appends to a sequence.

    ``token``: None if the sequence ends without one. ``outcome``: how the sequence ends; None if it
    continues. ``failure``: an error message.
    """

    sequence: DecodingSequence
    token: int | None = None
    outcome: Outcome | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    failure: str = ""

    @classmethod
    def failed(cls, sequence: DecodingSequence, failure: Failure) -> "NextToken":
        """Ends ``sequence`` without a token."""
        return cls(sequence, None, failure.outcome, failure=failure.message)


class TokenSelector:
    """Selects tokens and appends them.

    Args:
        max_length: the number of tokens that a slot holds.
        device_sampler: selects tokens on the device; None selects all on the host.
    """

    def __init__(self, max_length: int, device_sampler: DeviceSampler | None = None) -> None:
        self._max_length = max_length
        self._device_sampler = device_sampler

    def select(
        self, sequences: Sequence[DecodingSequence], indices: Sequence[int], logits: Logits
    ) -> list[NextToken]:
        """Selects and appends each sequence's next token. ``indices``: its row in ``logits``."""
        if logits.knows_best and all(sequence.needs_only_argmax for sequence in sequences):
            return self._select_argmax(sequences, indices, logits)
        uniforms = _uniforms(sequences)
        if self._device_sampler is None:
            return self._select_on_host(sequences, uniforms, indices, logits)
        requests = list(map(SampleRequest, indices, sequences, uniforms))
        tokens = self._device_sampler.sample(logits, requests)
        selected: list[NextToken] = []
        undecided: list[int] = []
        scored: dict[int, int] = {}  # chosen tokens whose log-probabilities are wanted
        for i, (sequence, token) in enumerate(zip(sequences, tokens, strict=True)):
            if token is None:
                undecided.append(i)
            elif sequence.job.logprob_options.top_logprobs is None:
                selected.append(self.append(sequence, token))
            else:
                scored[i] = token
        if scored:
            by_row = {indices[i]: token for i, token in scored.items()}
            selected += self._append_scored([sequences[i] for i in scored], by_row, logits)
        if undecided:
            sequences = [sequences[i] for i in undecided]
            uniforms = [uniforms[i] for i in undecided]
            indices = [indices[i] for i in undecided]
            selected += self._select_on_host(sequences, uniforms, indices, logits)
        return selected

    def _append_scored(
        self, sequences: Sequence[DecodingSequence], tokens: dict[int, int], logits: Logits
    ) -> list[NextToken]:
        """Appends tokens that are already chosen, with their log-probabilities.

        ``tokens``: the token by row of ``logits``, in the order of the sequences.
        """
        indices, chosen = list(tokens), list(tokens.values())
        top = logits.top(indices, _num_top(sequences), chosen)
        if top is None:
            return list(map(self.append, sequences, chosen, logits.rows(indices)))
        return list(map(self._append_found, sequences, chosen, top))

    def append_all(
        self, sequence: DecodingSequence, tokens: Sequence[int | None]
    ) -> Outcome | None:
        """Appends the argmaxes of several runs, each of which cached the token before.

        Only the last token may end the sequence. It is None if its logits are not finite.

        Returns:
            How the sequence ends; None if it continues.
        """
        sequence.num_cached_tokens += len(tokens)
        *earlier, last = tokens
        sequence.tokens += [token for token in earlier if token is not None]
        return NOT_FINITE.outcome if last is None else self._outcome_of(sequence, last)

    def append(
        self, sequence: DecodingSequence, token: int, logits: Floats | None = None
    ) -> NextToken:
        """Appends a token that is already chosen.

        ``logits [vocabulary]``: the source of log-probabilities; None if the job wants none.
        """
        return self._append(sequence, token, logits, uniform=None)

    def find_non_finite(self, indices: Sequence[int], logits: Logits) -> list[int]:
        """Returns the ``indices`` whose rows of ``logits`` are not finite."""
        if indices and self._device_sampler is not None:
            are_finite = self._device_sampler.are_finite(logits, indices)
            indices = [
                index for index, finite in zip(indices, are_finite, strict=True) if not finite
            ]
        return [index for index in indices if not np.isfinite(logits.rows([index]).max())]

    def _select_on_host(
        self,
        sequences: Sequence[DecodingSequence],
        uniforms: Sequence[float],
        indices: Sequence[int],
        logits: Logits,
    ) -> list[NextToken]:
        """Selects tokens from the rows of ``logits`` at ``indices``.

        Sequences that need whole rows come first: selecting the argmax of the others may reuse
        the memory of the rows.
        """
        whole: list[int] = []
        plain: list[int] = []
        likeliest: list[int] = []
        for i, sequence in enumerate(sequences):
            if sequence.needs_only_argmax:
                plain.append(i)
            else:
                (likeliest if sequence.takes_argmax else whole).append(i)
        selected: list[NextToken] = []
        if likeliest:
            chosen = [sequences[i] for i in likeliest]
            top = logits.top([indices[i] for i in likeliest], _num_top(chosen))
            if top is None:
                whole = sorted([*whole, *likeliest])
            else:
                tokens = [each.tokens[0] if each.tokens else None for each in top]
                selected += map(self._append_found, chosen, tokens, top)
        if whole:
            rows = logits.rows([indices[i] for i in whole])
            for i, row, token in zip(whole, rows, greedy(rows), strict=True):
                uniform = None if sequences[i].takes_argmax else uniforms[i]
                selected.append(self._append_finite(sequences[i], token, row, uniform))
        if plain:
            chosen = [sequences[i] for i in plain]
            selected += self._select_argmax(chosen, [indices[i] for i in plain], logits)
        return selected

    def _append_found(
        self, sequence: DecodingSequence, token: int | None, top: TopTokens
    ) -> NextToken:
        """Appends a token: the target of ``top``, or the likeliest one without a target."""
        if token is None or not math.isfinite(top.total):
            return NextToken.failed(sequence, NOT_FINITE)
        outcome = self._outcome_of(sequence, token)
        num_top = sequence.job.logprob_options.top_logprobs or 0
        logprob = sampling.logprob_in_top(top.target, top, num_top)
        return NextToken(sequence, token, outcome, (logprob,))

    def _select_argmax(
        self, sequences: Sequence[DecodingSequence], indices: Sequence[int], logits: Logits
    ) -> list[NextToken]:
        return [
            NextToken.failed(sequence, NOT_FINITE)
            if token is None
            else NextToken(sequence, token, self._outcome_of(sequence, token))
            for sequence, token in zip(sequences, logits.best(indices), strict=True)
        ]

    def _outcome_of(self, sequence: DecodingSequence, token: int) -> Outcome | None:
        """Appends ``token``. Returns how the sequence ends with it; None if it continues."""
        outcome = sequence.append(token)
        if outcome is None and sequence.num_cached_tokens == self._max_length:
            outcome = Outcome.LENGTH
        return outcome

    def _append_finite(
        self,
        sequence: DecodingSequence,
        token: int | None,
        logits: Floats | None,
        uniform: float | None,
    ) -> NextToken:
        """Calls :meth:`_append`; fails if ``token`` is None, because the row is not finite."""
        if token is None:
            return NextToken.failed(sequence, NOT_FINITE)
        return self._append(sequence, token, logits, uniform)

    def _append(
        self,
        sequence: DecodingSequence,
        token: int,
        logits: Floats | None,
        uniform: float | None,
    ) -> NextToken:
        """Appends ``token``; or, given a ``uniform`` random number, one chosen from ``logits``.

        An error ends only this sequence.
        """
        try:
            options = sequence.job.logprob_options
            if uniform is not None and logits is not None:
                processed = process(sequence, logits)
                token = choose(sequence, processed, uniform)
                logits = processed if options.are_processed else logits
            outcome = self._outcome_of(sequence, token)
            num_top = options.top_logprobs
            if num_top is None or logits is None:
                return NextToken(sequence, token, outcome)
            logprob = sampling.token_logprob(logits, token, num_top)
            return NextToken(sequence, token, outcome, (logprob,))
        except Exception as error:
            return NextToken.failed(sequence, selection_failure(error))


def _num_top(sequences: Sequence[DecodingSequence]) -> int:
    """Returns the most top tokens that one of the sequences wants, at least one."""
    return max(sequence.job.logprob_options.top_logprobs or 1 for sequence in sequences)


def _uniforms(sequences: Sequence[DecodingSequence]) -> list[float]:
    """Draws a random number in [0, 1) for each sequence that samples; 0 for the others."""
    return [
        0.0 if sequence.generator is None else sequence.generator.random() for sequence in sequences
    ]


def process(sequence: DecodingSequence, logits: Floats) -> Floats:
    """Applies a sequence's processors and constraint to a copy of finite ``logits [vocabulary]``.

    Raises:
        NoTokenError: no token is allowed.
        ConstraintError: the grammar became too expensive to follow.
    """
    processed = logits.copy()
    sequence.process_logits(processed)
    if processed.max() == -np.inf:
        raise NoTokenError
    return processed


def choose(sequence: DecodingSequence, processed: Floats, uniform: float) -> int:
    """Chooses the next token of a sequence by its ``processed`` logits: see :func:`process`.

    ``uniform``: a random number in [0, 1).
    """
    if sequence.generator is None:
        return int(processed.argmax())
    return sampling.sample(processed, sequence.job.sampling, uniform)
