"""Beam search over one source or prompt: a state machine over log-probabilities, without I/O.

The rules are those of ``generate(num_beams=…)`` in ``transformers``: candidates that end a
hypothesis count only among the best ``size``, scores are divided by ``length ** length_penalty``,
and :class:`EarlyStopping` says when to stop.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from server.engine.decoding.options import Beams, EarlyStopping
from server.runtime.host_ops import TopTokens


class Branch(NamedTuple):
    """A live hypothesis of the next step: the live hypothesis ``parent`` extended by ``token``."""

    parent: int
    token: int


class Hypothesis(NamedTuple):
    """Generated ``tokens`` and their log-probabilities.

    ``score``: the sum of ``logprobs``; a finished hypothesis has the length penalty applied.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    score: float

    def extended(self, token: int, score: float) -> "Hypothesis":
        """Returns the hypothesis with one more token; ``score`` is the new sum."""
        logprobs = (*self.logprobs, score - self.score)
        return Hypothesis((*self.tokens, token), logprobs, score)

    def cut(self, length: int) -> "Hypothesis":
        """Returns a live hypothesis with the first ``length`` tokens of this one, live or not."""
        logprobs = self.logprobs[:length]
        return Hypothesis(self.tokens[:length], logprobs, sum(logprobs))

    def penalized(self, beams: Beams) -> "Hypothesis":
        """Returns the hypothesis with the length penalty applied."""
        length = max(len(self.tokens), 1)
        return self._replace(score=self.score / length**beams.length_penalty)


@dataclass(slots=True)
class BeamSearch:
    """The state of one search.

    Attributes:
        live: the hypotheses to extend, best first.
        finished: the best hypotheses that ended, best first.
        is_over: no live hypothesis can enter ``finished`` any more, or :meth:`end_at` was called.
        num_agreed: how many leading tokens all hypotheses share, as of the last
            :meth:`agree_further`.
    """

    beams: Beams
    eos: frozenset[int]
    max_new_tokens: int
    live: list[Hypothesis] = field(default_factory=lambda: [Hypothesis((), (), 0.0)])
    finished: list[Hypothesis] = field(default_factory=list)
    is_over: bool = False
    num_agreed: int = 0

    @property
    def num_candidates(self) -> int:
        """How many next tokens each hypothesis needs, the likeliest: ``size`` do not end it."""
        return self.beams.size + len(self.eos)

    def advance(self, top_tokens: Sequence[TopTokens]) -> list[Branch]:
        """Takes one step.

        Args:
            top_tokens: for each live hypothesis, the :attr:`num_candidates` likeliest next tokens
                or more, or all that are allowed.

        Returns:
            The live hypotheses of the next step, best first; none when the search is over.
        """
        length = len(self.live[0].tokens) + 1
        is_last = length >= self.max_new_tokens
        branches: list[Branch] = []
        live: list[Hypothesis] = []
        size = self.beams.size
        for rank, (score, parent, token) in enumerate(self._candidates(top_tokens)):
            if rank >= size and len(live) == size:
                break
            if is_last or token in self.eos:
                if rank < size:
                    self._finish(self.live[parent].extended(token, score))
            elif len(live) < size:
                branches.append(Branch(parent, token))
                live.append(self.live[parent].extended(token, score))
        if live and not self._cannot_improve(live[0].score, length):
            self.live = live
            return branches
        self.is_over = True
        if not live:  # their parents have ended, or have no token that is allowed
            self.live = []
        return []

    def best(self, count: int) -> list[Hypothesis]:
        """Returns at most ``count`` hypotheses, best first: finished ones, then live ones."""
        live = [hypothesis.penalized(self.beams) for hypothesis in self.live if hypothesis.tokens]
        return [*self.finished, *live][:count]

    def end_at(self, length: int) -> None:
        """Ends the search and cuts every hypothesis to its first ``length`` tokens.

        All hypotheses must agree on them.
        """
        found = [*self.finished, *self.live][: self.beams.size]
        self.live = [hypothesis.cut(length) for hypothesis in found]
        self.finished, self.is_over = [], True

    def agree_further(self) -> tuple[int, ...]:
        """Returns the tokens after the first ``num_agreed`` on which all hypotheses agree.

        Adds them to ``num_agreed``. They never change later: new hypotheses extend live ones.
        """
        texts = [hypothesis.tokens for hypothesis in (*self.live, *self.finished)]
        first, start = texts[0], self.num_agreed
        for tokens in zip(*(text[start:] for text in texts), strict=False):
            if tokens.count(tokens[0]) < len(tokens):
                break
            self.num_agreed += 1
        return first[start : self.num_agreed]

    def _candidates(self, top_tokens: Sequence[TopTokens]) -> list[tuple[float, int, int]]:
        """``(score, parent, token)`` of the best continuations, best first.

        Only tokens that can matter are considered: those that end a hypothesis, if they are among
        its best ``size``, and its best ``size`` other tokens.
        """
        size, eos = self.beams.size, self.eos
        found = []
        for parent, (live, top) in enumerate(zip(self.live, top_tokens, strict=True)):
            num_live = 0
            for rank, (token, logprob) in enumerate(zip(top.tokens, top.logprobs, strict=True)):
                if token not in eos:
                    num_live += 1
                elif rank >= size:
                    continue
                found.append((live.score + logprob, parent, token))
                if num_live == size:
                    break
        found.sort(key=itemgetter(0), reverse=True)  # equal ones stay in order
        return found

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
