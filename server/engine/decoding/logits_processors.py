"""What changes a row of logits before a token is chosen from it. One entry for each option."""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from server.engine.decoding.options import LogitsOptions

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class TokenHistory(NamedTuple):
    """Of one sequence: all that its decoder knows, and how many of the first are the prompt."""

    ids: Sequence[int]
    num_prompt: int

    @property
    def generated(self) -> Sequence[int]:
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


class EditKind(StrEnum):
    """What becomes of a logit, in the order in which kinds apply."""

    ADDED = "added"  # ``logit + value``
    WEAKENED = "weakened"  # ``logit * value`` if it is negative, else ``logit / value``
    LOWERED = "lowered"  # ``logit - value``
    FORBIDDEN = "forbidden"  # -inf


class LogitsEdit(NamedTuple):
    """What one option does to the logits of ``ids``, none of them twice.

    ``values`` float32: one for each id, or one for all.
    """

    kind: EditKind
    ids: Ids
    values: Floats | np.float32 = np.float32(0)

    def apply(self, logits: Floats) -> None:
        """Changes ``logits [vocabulary]`` in place."""
        match self.kind:
            case EditKind.ADDED:
                logits[self.ids] += self.values
            case EditKind.WEAKENED:
                values = logits[self.ids]
                weaker = np.where(values < 0, values * self.values, values / self.values)
                logits[self.ids] = weaker
            case EditKind.LOWERED:
                logits[self.ids] -= self.values
            case EditKind.FORBIDDEN:
                logits[self.ids] = -np.inf


LogitsProcessor = Callable[[TokenHistory], LogitsEdit | None]
"""What one option changes after some tokens, if anything."""


def logits_processors(options: LogitsOptions, eos: Iterable[int]) -> tuple[LogitsProcessor, ...]:
    """What the options change, in the order it applies: that of :class:`EditKind`."""
    chosen: list[LogitsProcessor] = []
    if options.logit_bias:
        chosen.append(_bias(options))
    if options.repetition_penalty != 1.0:
        chosen.append(_repetition(options))
    if options.presence_penalty or options.frequency_penalty:
        chosen.append(_frequency(options))
    if options.no_repeat_ngram_size:
        chosen.append(_no_repeat_ngram(options))
    if options.bad_word_ids:
        chosen.append(_bad_words(options))
    if options.min_new_tokens:
        chosen.append(_min_new_tokens(options, tuple(eos)))
    return tuple(chosen)


def _bias(options: LogitsOptions) -> LogitsProcessor:
    ids = np.array([id_ for id_, _ in options.logit_bias], np.int64)
    change = LogitsEdit(
        EditKind.ADDED, ids, np.array([value for _, value in options.logit_bias], np.float32)
    )
    return lambda _tokens: change


def _repetition(options: LogitsOptions) -> LogitsProcessor:
    """Keskar et al. 2019, section 4.1: the logit of every token seen is weakened by a factor."""
    penalty = np.float32(options.repetition_penalty)

    def adjust(tokens: TokenHistory) -> LogitsEdit:
        seen = set(tokens.ids)
        return LogitsEdit(EditKind.WEAKENED, np.fromiter(seen, np.int64, len(seen)), penalty)

    return adjust


def _frequency(options: LogitsOptions) -> LogitsProcessor:
    """As OpenAI's API documents it: by generated tokens, once for presence, once per count."""

    def adjust(tokens: TokenHistory) -> LogitsEdit | None:
        if not tokens.generated:
            return None
        ids, counts = np.unique(np.asarray(tokens.generated), return_counts=True)
        penalty = options.presence_penalty + options.frequency_penalty * counts
        return LogitsEdit(EditKind.LOWERED, ids, penalty.astype(np.float32))

    return adjust


def _no_repeat_ngram(options: LogitsOptions) -> LogitsProcessor:
    """Paulus et al. 2018, section 2.5: what would complete an n-gram a second time is forbidden."""
    size = options.no_repeat_ngram_size

    def adjust(tokens: TokenHistory) -> LogitsEdit | None:
        ids = np.asarray(tokens.ids)
        if len(ids) < size:
            return None
        windows = np.lib.stride_tricks.sliding_window_view(ids, size)
        same = (windows[:, :-1] == ids[len(ids) - size + 1 :]).all(1)
        return LogitsEdit(EditKind.FORBIDDEN, np.unique(windows[same, -1]))

    return adjust


def _bad_words(options: LogitsOptions) -> LogitsProcessor:
    def adjust(tokens: TokenHistory) -> LogitsEdit:
        forbidden = set()
        for *before, last in options.bad_word_ids:
            generated = tokens.generated
            if not before or list(generated[len(generated) - len(before) :]) == before:
                forbidden.add(last)
        return LogitsEdit(EditKind.FORBIDDEN, np.fromiter(forbidden, np.int64, len(forbidden)))

    return adjust


def _min_new_tokens(options: LogitsOptions, eos: tuple[int, ...]) -> LogitsProcessor:
    change = LogitsEdit(EditKind.FORBIDDEN, np.array(eos, np.int64))

    def adjust(tokens: TokenHistory) -> LogitsEdit | None:
        num_generated = len(tokens.ids) - tokens.num_prompt
        return change if num_generated < options.min_new_tokens else None

    return adjust
