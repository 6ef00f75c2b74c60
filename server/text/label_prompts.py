"""Texts after the labels to find in them, split into words: the input of GLiNER.

Zaratiana et al. 2023, section 2.2. :mod:`model.span_tagging` has the rules for words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

from model.bundle import SpanTagging
from model.span_tagging import prompt_words, word_spans
from server.text.tokenizer import Tokenizer
from server.text.windows import (
    LengthLimit,
    LongInput,
    TokenizedText,
    TooLongError,
    Window,
    WindowBudget,
    overlap,
)

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PromptedText:
    """A text after its labels, split into windows of whole words.

    Attributes:
        tokenized: the windows; its offsets are those of the text's words, in characters.
        words: for each window, the words in it. Words without tokens do not count.
        word_positions: for each window, the index of each word's first token.
        label_positions: in each window, the index of the token that represents each label.
    """

    tokenized: TokenizedText
    words: tuple[range, ...]
    word_positions: tuple[tuple[int, ...], ...]
    label_positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The tokens of a prompt and a text.

    The tokens of word ``i``, at least one, are those from ``starts[i]`` up to ``starts[i + 1]``. It
    is in the text from ``offsets[i][0]`` to ``offsets[i][1]``.
    """

    ids: tuple[int, ...]
    starts: Ids
    offsets: tuple[tuple[int, int], ...]
    label_positions: tuple[int, ...]

    @property
    def num_words(self) -> int:
        return len(self.offsets)

    @property
    def num_around(self) -> int:
        """The number of tokens before and after the text."""
        return len(self.ids) - int(self.starts[-1] - self.starts[0])


class LabelPrompts:
    """Tokenizes texts after the same labels. Thread-safe.

    Args:
        tokenizer: the model's tokenizer.
        spec: how the model reads texts.
        labels: the labels, in order.
    """

    def __init__(self, tokenizer: Tokenizer, spec: SpanTagging, labels: Sequence[str]) -> None:
        self._tokenizer, self._spec = tokenizer, spec
        marker, separator = tokenizer.tokens((spec.marker, spec.separator))
        self._prompt = prompt_words(labels, marker, separator)

    def tokenize(
        self, texts: Sequence[str], limit: LengthLimit, budget: WindowBudget
    ) -> list[PromptedText]:
        """Tokenizes texts. Windows overlap by whole words.

        Raises:
            TooLongError: a text exceeds the limit or the budget; ``index`` says which.
        """
        offsets = [word_spans(text) for text in texts]
        rows = [
            [*self._prompt, *(text[start:end] for start, end in spans)]
            for text, spans in zip(texts, offsets, strict=True)
        ]
        results = []
        for index, whole in enumerate(self._tokenizer.encode_words(rows)):
            try:
                results.append(self._split(self._tokens(whole, offsets[index]), limit, budget))
            except TooLongError as error:
                error.index = index
                raise
        return results

    def _tokens(self, whole: Encoding, offsets: list[tuple[int, int]]) -> _Tokens:
        words = np.array([-1 if word is None else word for word in whole.word_ids], np.int64)
        # Special tokens belong to no word: those at the end come after the last word.
        (inside,) = np.nonzero(words >= 0)
        num_before = len(self._prompt)
        starts = np.searchsorted(words[inside], np.arange(num_before + len(offsets) + 1))
        bounds = np.append(inside, inside[-1] + 1)[starts]
        labels = bounds[: num_before - 1 : 2] + (0 if self._spec.reads_marker else 1)
        own = bounds[num_before:]
        (kept,) = np.nonzero(own[1:] > own[:-1])
        return _Tokens(
            ids=tuple(whole.ids),
            starts=np.append(own[kept], own[-1]),
            offsets=tuple(offsets[word] for word in kept.tolist()),
            label_positions=tuple(labels.tolist()),
        )

    def _split(self, tokens: _Tokens, limit: LengthLimit, budget: WindowBudget) -> PromptedText:
        room = _room(tokens, limit, self._spec.max_words)
        ranges = _ranges(tokens, limit, self._spec.max_words, room, budget.num_windows)
        starts = tokens.starts
        lengths = [min(int(starts[x.stop] - starts[x.start]), room) for x in ranges]
        budget.spend(len(ranges), sum(lengths) + len(ranges) * tokens.num_around)
        before, after = tokens.ids[: starts[0]], tokens.ids[starts[-1] :]
        windows, positions = [], []
        for words, length in zip(ranges, lengths, strict=True):
            first = int(starts[words.start])
            windows.append(
                Window(
                    token_ids=(*before, *tokens.ids[first : first + length], *after),
                    segment_ids=(),
                    text_start=len(before),
                    first_token=first - len(before),
                    num_text_tokens=length,
                )
            )
            own = starts[words.start : words.stop] - first + len(before)
            positions.append(tuple(own.tolist()))
        num_kept = int(starts[ranges[-1].stop] - starts[ranges[0].start])
        if len(ranges) == 1:
            num_kept = lengths[0]
        tokenized = TokenizedText(
            windows=tuple(windows),
            offsets=tokens.offsets,
            word_ids=(),
            num_truncated_tokens=int(starts[-1] - starts[0]) - num_kept,
        )
        return PromptedText(tokenized, tuple(ranges), tuple(positions), tokens.label_positions)


def _room(tokens: _Tokens, limit: LengthLimit, max_words: int) -> int:
    """The most tokens of the text in a window.

    Raises ``TooLongError`` if the text is too long, or if the labels leave no room.
    """
    if len(tokens.ids) <= limit.max_whole_tokens and tokens.num_words <= max_words:
        return len(tokens.ids)
    if limit.long_input == LongInput.ERROR:
        raise TooLongError(
            f"has {len(tokens.ids)} tokens with the labels, and {tokens.num_words} words; at most "
            f"{limit.max_whole_tokens} tokens and {max_words} words are accepted"
        )
    room = limit.max_tokens - tokens.num_around
    if room < 1:
        raise TooLongError(
            f"a window of {limit.max_tokens} tokens has no room for the text after the labels"
        )
    return room


def _ranges(
    tokens: _Tokens, limit: LengthLimit, max_words: int, room: int, max_windows: int
) -> list[range]:
    """The words of each window; at most ``max_windows + 1`` windows.

    Raises ``TooLongError`` for a stride that leaves no room.
    """
    count, starts = tokens.num_words, tokens.starts
    if not count:
        return [range(0)]

    def stop_of(first: int) -> int:
        fitting = int(np.searchsorted(starts, starts[first] + room, side="right")) - 1
        return max(min(fitting, first + max_words, count), first + 1)

    if limit.long_input == LongInput.TRUNCATE_RIGHT:
        return [range(stop_of(0))]
    if limit.long_input == LongInput.TRUNCATE_LEFT:
        first = int(np.searchsorted(starts, starts[count] - room))
        return [range(min(max(first, count - max_words), count - 1), count)]
    ranges = [range(stop_of(0))]
    if ranges[0].stop == count:
        return ranges
    stride = None if limit.stride is None else overlap(room, limit)
    while ranges[-1].stop < count and len(ranges) <= max_windows:
        last = ranges[-1]
        # A window that is full of words may have far fewer tokens than there is room for.
        quarter = int(starts[last.stop] - starts[last.start]) // 4
        kept = quarter if stride is None else stride
        first = int(np.searchsorted(starts, starts[last.stop] - kept))
        first = min(max(first, last.start + 1), last.stop)
        # A window that ends where the last one does, because of a long word, is left out.
        while stop_of(first) <= last.stop:
            first += 1
        ranges.append(range(first, stop_of(first)))
    return ranges
