"""Logits processors: one for each option that changes logits before a token is chosen.

A processor returns an edit instead of changing the logits, so that both the host and a device can
apply it.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from server.constraint import Floats
from server.engine.decoding.bad_words import BadWordIds
from server.engine.decoding.options import LogitsOptions

Ids = npt.NDArray[np.int64]


class TokenHistory(NamedTuple):
    """The tokens of one sequence; the first ``num_prompt`` of ``ids`` are the prompt."""

    ids: Sequence[int]
    num_prompt: int

    @property
    def generated(self) -> Sequence[int]:
        return self.ids[self.num_prompt :]


class EditKind(StrEnum):
    """How an edit changes a logit. Edits are applied in the order of their kinds."""

    ADDED = "added"  # ``logit + value``
    PENALIZED = "penalized"  # ``logit * value`` if it is negative, else ``logit / value``
    SUBTRACTED = "subtracted"  # ``logit - value``
    FORBIDDEN = "forbidden"  # -inf


class LogitsEdit(NamedTuple):
    """A change of the logits of ``ids``, which are distinct.

    ``values``: float32, one for each id or one for all.
    """

    kind: EditKind
    ids: Ids
    values: Floats | np.float32 = np.float32(0)

    def apply(self, logits: Floats) -> None:
        """Changes ``logits [vocabulary]`` in place."""
        match self.kind:
            case EditKind.ADDED:
                logits[self.ids] += self.values
            case EditKind.PENALIZED:
                values = logits[self.ids]
                penalized = np.where(values < 0, values * self.values, values / self.values)
                logits[self.ids] = penalized
            case EditKind.SUBTRACTED:
                logits[self.ids] -= self.values
            case EditKind.FORBIDDEN:
                logits[self.ids] = -np.inf


LogitsProcessor = Callable[[TokenHistory], LogitsEdit | None]
"""Maps a sequence's tokens to the edit of one option; None if it changes nothing."""


def logits_processors(
    options: LogitsOptions, eos: Iterable[int], source: Sequence[int] = ()
) -> tuple[LogitsProcessor, ...]:
    """Makes the processors for the options, in the order of :class:`EditKind`.

    Args:
        source: the tokens of the encoder's text, or of a decoder's prompt.
    """
    processors: list[LogitsProcessor] = []
    if options.logit_bias:
        processors.append(_bias(options))
    if options.repetition_penalty != 1.0:
        processors.append(_repetition(options))
    if options.presence_penalty or options.frequency_penalty:
        processors.append(_frequency(options))
    if options.no_repeat_ngram_size:
        processors.append(_no_repeat_ngram(options))
    if options.encoder_no_repeat_ngram_size:
        processors.append(_no_source_ngram(options, source))
    if options.bad_word_ids is not None:
        processors.append(_bad_words(options.bad_word_ids))
    if options.min_new_tokens:
        processors.append(_min_new_tokens(options, tuple(eos)))
    return tuple(processors)


def _bias(options: LogitsOptions) -> LogitsProcessor:
    ids = np.array([id_ for id_, _ in options.logit_bias], np.int64)
    edit = LogitsEdit(
        EditKind.ADDED, ids, np.array([value for _, value in options.logit_bias], np.float32)
    )
    return lambda _tokens: edit


def _repetition(options: LogitsOptions) -> LogitsProcessor:
    """Penalizes the logits of tokens in the sequence (Keskar et al. 2019, section 4.1)."""
    penalty = np.float32(options.repetition_penalty)

    def process(tokens: TokenHistory) -> LogitsEdit:
        seen = set(tokens.ids)
        return LogitsEdit(EditKind.PENALIZED, np.fromiter(seen, np.int64, len(seen)), penalty)

    return process


def _frequency(options: LogitsOptions) -> LogitsProcessor:
    """Subtracts one presence penalty and, per occurrence, a frequency penalty, as OpenAI's API."""

    def process(tokens: TokenHistory) -> LogitsEdit | None:
        if not tokens.generated:
            return None
        ids, counts = np.unique(np.asarray(tokens.generated), return_counts=True)
        penalty = options.presence_penalty + options.frequency_penalty * counts
        return LogitsEdit(EditKind.SUBTRACTED, ids, penalty.astype(np.float32))

    return process


def _no_repeat_ngram(options: LogitsOptions) -> LogitsProcessor:
    """Forbids tokens that would repeat an n-gram (Paulus et al. 2018, section 2.5)."""
    size = options.no_repeat_ngram_size

    def process(tokens: TokenHistory) -> LogitsEdit | None:
        ids = np.asarray(tokens.ids)
        if len(ids) < size:
            return None
        return _forbidden_after(ids[len(ids) - size + 1 :], ids)

    return process


def _no_source_ngram(options: LogitsOptions, source: Sequence[int]) -> LogitsProcessor:
    """Forbids tokens that would repeat an n-gram of the source.

    As ``EncoderNoRepeatNGramLogitsProcessor`` of ``transformers``, for Roller et al. 2020, 4.4.
    """
    size, source_ids = options.encoder_no_repeat_ngram_size, np.asarray(source, np.int64)

    def process(tokens: TokenHistory) -> LogitsEdit | None:
        start = len(tokens.ids) - size + 1
        if start < 0 or len(source_ids) < size:
            return None
        return _forbidden_after(tokens.ids[start:], source_ids)

    return process


def _forbidden_after(tail: Iterable[int], ids: Ids) -> LogitsEdit:
    """Forbids the tokens that follow ``tail``, which is shorter than ``ids``, in ``ids``."""
    tail = tuple(tail)
    starts = np.arange(len(ids) - len(tail))
    for offset, id_ in enumerate(tail):  # few starts remain after the first tokens
        starts = starts[ids[starts + offset] == id_]
        if not len(starts):
            break
    return LogitsEdit(EditKind.FORBIDDEN, np.unique(ids[starts + len(tail)]))


def _bad_words(words: BadWordIds) -> LogitsProcessor:
    """The last token of a bad word is forbidden after the tokens before it."""

    def process(tokens: TokenHistory) -> LogitsEdit:
        num_generated = len(tokens.ids) - tokens.num_prompt
        return LogitsEdit(EditKind.FORBIDDEN, words.completing(tokens.ids, num_generated))

    return process


def _min_new_tokens(options: LogitsOptions, eos: tuple[int, ...]) -> LogitsProcessor:
    edit = LogitsEdit(EditKind.FORBIDDEN, np.array(eos, np.int64))

    def process(tokens: TokenHistory) -> LogitsEdit | None:
        num_generated = len(tokens.ids) - tokens.num_prompt
        return edit if num_generated < options.min_new_tokens else None

    return process
