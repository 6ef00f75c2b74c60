"""What changes a row of logits before a token is chosen from it. One entry for each option."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Rows
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from server.engine.options import Adjustments

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


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


class Kind(StrEnum):
    """What becomes of a logit, in the order in which kinds apply."""

    ADDED = "added"  # ``logit + value``
    WEAKENED = "weakened"  # ``logit * value`` if it is negative, else ``logit / value``
    LOWERED = "lowered"  # ``logit - value``
    FORBIDDEN = "forbidden"  # -inf


class Change(NamedTuple):
    """What one option does to the logits of ``ids``, none of them twice.

    ``values`` float32: one for each id, or one for all.
    """

    kind: Kind
    ids: Ids
    values: Floats | np.float32 = np.float32(0)

    def apply(self, logits: Floats) -> None:
        """Changes ``logits [vocabulary]`` in place."""
        match self.kind:
            case Kind.ADDED:
                logits[self.ids] += self.values
            case Kind.WEAKENED:
                values = logits[self.ids]
                weaker = np.where(values < 0, values * self.values, values / self.values)
                logits[self.ids] = weaker
            case Kind.LOWERED:
                logits[self.ids] -= self.values
            case Kind.FORBIDDEN:
                logits[self.ids] = -np.inf


Adjust = Callable[[Tokens], Change | None]
"""What one option changes after some tokens, if anything."""


def adjusters(options: Adjustments, eos: Iterable[int]) -> tuple[Adjust, ...]:
    """What the options change, in the order it applies: that of :class:`Kind`."""
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
    ids = np.array([id_ for id_, _ in options.logit_bias], np.int64)
    change = Change(
        Kind.ADDED, ids, np.array([value for _, value in options.logit_bias], np.float32)
    )
    return lambda _tokens: change


def _repetition(options: Adjustments) -> Adjust:
    """Keskar et al. 2019, section 4.1: the logit of every token seen is weakened by a factor."""
    penalty = np.float32(options.repetition_penalty)

    def adjust(tokens: Tokens) -> Change:
        seen = set(tokens.ids)
        return Change(Kind.WEAKENED, np.fromiter(seen, np.int64, len(seen)), penalty)

    return adjust


def _frequency(options: Adjustments) -> Adjust:
    """As OpenAI's API documents it: by generated tokens, once for presence, once per count."""

    def adjust(tokens: Tokens) -> Change | None:
        if not tokens.generated:
            return None
        ids, counts = np.unique(np.asarray(tokens.generated), return_counts=True)
        penalty = options.presence_penalty + options.frequency_penalty * counts
        return Change(Kind.LOWERED, ids, penalty.astype(np.float32))

    return adjust


def _no_repeat_ngram(options: Adjustments) -> Adjust:
    """Paulus et al. 2018, section 2.5: what would complete an n-gram a second time is forbidden."""
    size = options.no_repeat_ngram_size

    def adjust(tokens: Tokens) -> Change | None:
        ids = np.asarray(tokens.ids)
        if len(ids) < size:
            return None
        windows = np.lib.stride_tricks.sliding_window_view(ids, size)
        same = (windows[:, :-1] == ids[len(ids) - size + 1 :]).all(1)
        return Change(Kind.FORBIDDEN, np.unique(windows[same, -1]))

    return adjust


def _bad_words(options: Adjustments) -> Adjust:
    def adjust(tokens: Tokens) -> Change:
        forbidden = set()
        for *before, last in options.bad_words:
            generated = tokens.generated
            if not before or list(generated[len(generated) - len(before) :]) == before:
                forbidden.add(last)
        return Change(Kind.FORBIDDEN, np.fromiter(forbidden, np.int64, len(forbidden)))

    return adjust


def _min_new_tokens(options: Adjustments, eos: tuple[int, ...]) -> Adjust:
    change = Change(Kind.FORBIDDEN, np.array(eos, np.int64))

    def adjust(tokens: Tokens) -> Change | None:
        num_generated = len(tokens.ids) - tokens.num_prompt
        return change if num_generated < options.min_new_tokens else None

    return adjust
