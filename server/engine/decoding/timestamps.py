"""Constraints for jobs that transcribe speech: :class:`server.constraint.Constraint`.

Unlike logits processors, they need the values of the logits, so the host applies them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from server.constraint import Constraint, Floats
from server.runtime.host_ops import log_sum_exp


@dataclass(frozen=True, slots=True)
class TimestampTokens:
    """The tokens that the rules distinguish.

    Attributes:
        first_timestamp: the timestamps are this token and all after it.
        eos: ends an output. The tokens before it are text; it and those after it are special.
        max_first: the last timestamp that an output may begin with.
        suppressed: never generated.
        first_suppressed: never generated first.
    """

    first_timestamp: int
    eos: int
    max_first: int
    suppressed: tuple[int, ...] = ()
    first_suppressed: tuple[int, ...] = ()


@dataclass(slots=True)
class TimestampRules:
    """Divides an output into segments between timestamps, as Whisper was trained to do.

    The rules are those of the paper's released code (``ApplyTimestampRules`` in
    ``whisper/decoding.py``): an output begins with a timestamp; timestamps come in pairs, but a
    single one may precede the end; they do not decrease, and a segment is not empty; if all
    timestamps together are likelier than every other token, the next token is a timestamp.
    """

    tokens: TimestampTokens
    _num_tokens: int = 0
    _latest: int = -1  # the latest timestamp
    _ends_with_timestamp: bool = False
    _is_open: bool = False  # the last timestamp starts a segment, so text may follow

    def mask(self, logits: Floats) -> None:
        """Sets the logits ``[vocabulary]`` of all tokens that may not come next to -inf."""
        tokens = self.tokens
        first = tokens.first_timestamp
        logits[list(tokens.suppressed)] = -np.inf
        if not self._num_tokens:
            logits[list(tokens.first_suppressed)] = -np.inf
            logits[:first] = -np.inf
            logits[tokens.max_first + 1 :] = -np.inf
            return
        if self._ends_with_timestamp and self._is_open:
            logits[first:] = -np.inf
        elif self._ends_with_timestamp:
            logits[: tokens.eos] = -np.inf
            logits[first : self._latest] = -np.inf
        elif self._latest >= first:
            logits[first : self._latest + 1] = -np.inf
        others, timestamps = logits[:first], logits[first:]
        best = others.max()
        if timestamps.max() > -np.inf and log_sum_exp(timestamps) > best:
            others[:] = -np.inf

    def advance(self, token: int) -> None:
        """Takes the next token."""
        is_timestamp = token >= self.tokens.first_timestamp
        if is_timestamp:
            # The first timestamp starts a segment, and so does the second of a pair.
            self._is_open = not self._num_tokens or self._ends_with_timestamp
            self._latest = token
        self._ends_with_timestamp = is_timestamp
        self._num_tokens += 1

    def fork(self) -> "TimestampRules":
        """Returns an independent copy of the state."""
        return replace(self)


class ForcedStart:
    """Begins an output with given tokens; then follows another constraint.

    Args:
        choices: for each of the first positions, the allowed tokens; the likeliest is generated.
        rest: the constraint of the tokens after them.
    """

    def __init__(self, choices: Sequence[tuple[int, ...]], rest: Constraint) -> None:
        self._choices, self._rest = choices, rest

    def mask(self, logits: Floats) -> None:
        """Sets the logits ``[vocabulary]`` of all tokens that may not come next to -inf."""
        if not self._choices:
            self._rest.mask(logits)
            return
        choices = self._choices[0]
        likeliest = choices[int(logits[list(choices)].argmax())]
        kept = logits[likeliest]
        logits.fill(-np.inf)
        logits[likeliest] = kept

    def advance(self, token: int) -> None:
        """Takes the next token."""
        if self._choices:
            self._choices = self._choices[1:]
        else:
            self._rest.advance(token)

    def fork(self) -> "ForcedStart":
        """Returns an independent copy of the state."""
        return ForcedStart(self._choices, self._rest.fork())
