"""Beam search over one source or prompt: a pure state machine over log-probabilities.

The rules are those of ``transformers``' ``generate`` with ``num_beams``, so that users find
what they know: candidates that end a hypothesis count only among the best ``size``, scores
are divided by ``length ** length_penalty``, and three rules say when to stop.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from server.engine.options import Beams, EarlyStopping

Floats = npt.NDArray[np.float32]


class Branch(NamedTuple):
    """A live hypothesis of the next step: that of row ``parent`` with ``token`` after it."""

    parent: int
    token: int


class Hypothesis(NamedTuple):
    """``tokens`` that were generated, and their log-probabilities.

    ``score``: their sum for a live hypothesis, after the length penalty for one that ended.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    score: float

    def extended(self, token: int, score: float) -> "Hypothesis":
        """One token longer, with the sum ``score``."""
        logprobs = (*self.logprobs, score - self.score)
        return Hypothesis((*self.tokens, token), logprobs, score)

    def penalized(self, beams: Beams) -> "Hypothesis":
        """As it counts when it has ended."""
        length = max(len(self.tokens), 1)
        return self._replace(score=self.score / length**beams.length_penalty)


@dataclass(slots=True)
class BeamSearch:
    """The state of one search.

    ``live`` holds the hypothesis of each row, ``finished`` the best that ended; both best
    first.
    """

    beams: Beams
    eos: frozenset[int]
    max_new_tokens: int
    live: list[Hypothesis] = field(default_factory=lambda: [Hypothesis((), (), 0.0)])
    finished: list[Hypothesis] = field(default_factory=list)
    is_over: bool = False

    def advance(self, log_probabilities: Floats) -> list[Branch]:
        """Takes one step.

        Args:
            log_probabilities: ``[live, vocabulary]`` of the next token of each live
                hypothesis; minus infinity forbids a token.

        Returns:
            The live hypotheses of the next step, best first; none when the search is over.
        """
        length = len(self.live[0].tokens) + 1
        is_last = length >= self.max_new_tokens
        branches: list[Branch] = []
        live: list[Hypothesis] = []
        for rank, (score, parent, token) in enumerate(self._candidates(log_probabilities)):
            if is_last or token in self.eos:
                if rank < self.beams.size:
                    self._finish(self.live[parent].extended(token, score))
            elif len(live) < self.beams.size:
                branches.append(Branch(parent, token))
                live.append(self.live[parent].extended(token, score))
        if not live or self._cannot_improve(live[0].score, length):
            self.is_over = True
            return []
        self.live = live
        return branches

    def best(self, count: int) -> list[Hypothesis]:
        """At most ``count`` hypotheses, best first; live ones only where too few ended."""
        live = [hypothesis.penalized(self.beams) for hypothesis in self.live if hypothesis.tokens]
        return [*self.finished, *live][:count]

    def agreed(self) -> tuple[int, ...]:
        """The tokens with which every live and every finished hypothesis begins."""
        rows = [hypothesis.tokens for hypothesis in (*self.live, *self.finished)]
        first, last = min(rows), max(rows)
        for index, (a, b) in enumerate(zip(first, last, strict=False)):
            if a != b:
                return first[:index]
        return first[: len(last)]

    def _candidates(self, log_probabilities: Floats) -> list[tuple[float, int, int]]:
        """``(score, parent, token)`` of the best continuations, best first.

        As many that ``size`` of them go on even if every other one ends.
        """
        count = max(2, 1 + len(self.eos)) * self.beams.size
        found = []
        for parent, row in enumerate(log_probabilities):
            for token in top_indices(row, count):
                value = float(row[token])
                if value > -np.inf:
                    found.append((self.live[parent].score + value, parent, int(token)))
        found.sort(key=lambda candidate: -candidate[0])
        return found[:count]

    def _finish(self, hypothesis: Hypothesis) -> None:
        self.finished.append(hypothesis.penalized(self.beams))
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self.finished[self.beams.size :]

    def _cannot_improve(self, best_live_score: float, length: int) -> bool:
        if len(self.finished) < self.beams.size:
            return False
        if self.beams.early_stopping == EarlyStopping.FIRST:
            return True
        if self.beams.early_stopping == EarlyStopping.NEVER and self.beams.length_penalty > 0:
            length = self.max_new_tokens
        possible = best_live_score / math.pow(length, self.beams.length_penalty)
        return possible <= self.finished[-1].score


# A candidate set this far below the best logit is enough for any small count.
_NEAR = 12.0


def top_indices(row: Floats, count: int) -> npt.NDArray[np.intp]:
    """Indices of the ``count`` largest of ``row [n]``, largest first.

    Looks first at those near the maximum, which are few: several times faster than a
    partition of a whole vocabulary.
    """
    near = np.flatnonzero(row >= row.max() - _NEAR)
    if len(near) < count:
        near = np.arange(len(row))
    values = row[near]
    if len(near) > 4 * count:
        part = np.argpartition(values, len(values) - count)[len(values) - count :]
        near, values = near[part], values[part]
    return near[np.argsort(-values, kind="stable")[:count]]
