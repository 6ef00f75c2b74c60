"""What changes a row of logits before a token is chosen from it. One entry for each option."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Rows
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from server.engine.options import Adjustments

Floats = npt.NDArray[np.float32]


class Tokens(NamedTuple):
    """Of one sequence: all that its decoder knows, and how many of the first are the prompt."""

    ids: Rows[int]
    num_prompt: int

    @property
    def generated(self) -> Rows[int]:
        return self.ids[self.num_prompt :]


class Constraint(Protocol):
    """A grammar that a text must follow, after some of its tokens."""

    def mask(self, logits: Floats) -> None:
        """Sets the logits ``[vocabulary]`` of all tokens that may not come next to -inf."""

    def advance(self, token: int) -> None:
        """Takes the next token. Raises ``ConstraintError`` if the grammar cannot go on."""

    def fork(self) -> "Constraint":
        """A copy that goes its own way."""


class ConstraintError(Exception):
    """A grammar that became too expensive to follow, or cannot be followed."""


Adjust = Callable[[Floats, Tokens], None]


def adjusters(options: Adjustments, eos: Iterable[int]) -> tuple[Adjust, ...]:
    """Functions that change ``logits [vocabulary]`` in place, in the order they apply."""
    chosen: list[Adjust] = []
    if options.logit_bias:
        chosen.append(_bias(options))
    if options.repetition_penalty != 1.0:
        chosen.append(_repetition(options))
    if options.presence_penalty or options.frequency_penalty:
        chosen.append(_frequency(options))
    if options.no_repeat_ngram_size:
        chosen.append(_no_repeat_ngram(options))
    if options.bad_words:
        chosen.append(_bad_words(options))
    if options.min_new_tokens:
        chosen.append(_min_new_tokens(options, tuple(eos)))
    return tuple(chosen)


def _bias(options: Adjustments) -> Adjust:
    ids = [id_ for id_, _ in options.logit_bias]
    values = np.array([value for _, value in options.logit_bias], np.float32)

    def adjust(logits: Floats, _tokens: Tokens) -> None:
        logits[ids] += values

    return adjust


def _repetition(options: Adjustments) -> Adjust:
    """Keskar et al. 2019, section 4.1: the logit of every token seen is weakened by a factor."""
    penalty = np.float32(options.repetition_penalty)

    def adjust(logits: Floats, tokens: Tokens) -> None:
        seen = list(set(tokens.ids))
        values = logits[seen]
        logits[seen] = np.where(values < 0, values * penalty, values / penalty)

    return adjust


def _frequency(options: Adjustments) -> Adjust:
    """As OpenAI's API documents it: by generated tokens, once for presence, once per count."""

    def adjust(logits: Floats, tokens: Tokens) -> None:
        if not tokens.generated:
            return
        ids, counts = np.unique(np.asarray(tokens.generated), return_counts=True)
        penalty = options.presence_penalty + options.frequency_penalty * counts
        logits[ids] -= penalty.astype(np.float32)

    return adjust


def _no_repeat_ngram(options: Adjustments) -> Adjust:
    """Paulus et al. 2018, section 2.5: what would complete an n-gram a second time is forbidden."""
    size = options.no_repeat_ngram_size

    def adjust(logits: Floats, tokens: Tokens) -> None:
        ids = np.asarray(tokens.ids)
        if len(ids) < size:
            return
        windows = np.lib.stride_tricks.sliding_window_view(ids, size)
        same = (windows[:, :-1] == ids[len(ids) - size + 1 :]).all(1)
        logits[windows[same, -1]] = -np.inf

    return adjust


def _bad_words(options: Adjustments) -> Adjust:
    def adjust(logits: Floats, tokens: Tokens) -> None:
        for word in options.bad_words:
            *before, last = word
            generated = tokens.generated
            if not before or list(generated[len(generated) - len(before) :]) == before:
                logits[last] = -np.inf

    return adjust


def _min_new_tokens(options: Adjustments, eos: tuple[int, ...]) -> Adjust:
    def adjust(logits: Floats, tokens: Tokens) -> None:
        if len(tokens.ids) - tokens.num_prompt < options.min_new_tokens:
            logits[list(eos)] = -np.inf

    return adjust
