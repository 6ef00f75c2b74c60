"""Texts and pairs as an encoder reads them: whole, cut, or in windows that overlap."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tokenizers import Encoding
from tokenizers import Tokenizer as HuggingFaceTokenizer


class LongInput(StrEnum):
    """What happens to a text that has more tokens than are read at once."""

    ERROR = "error"
    CUT_RIGHT = "right"
    CUT_LEFT = "left"
    WINDOWS = "windows"


@dataclass(frozen=True, slots=True)
class LengthLimit:
    """In tokens, special ones included: ``max_tokens`` of a text that is cut or read in windows.

    ``max_whole_tokens`` is what the model can take; a text up to it is read as it is.
    ``stride``: tokens that neighbouring windows share; None for a quarter of a window.
    """

    fit: LongInput
    max_tokens: int
    max_whole_tokens: int
    stride: int | None = None


class TooLongError(Exception):
    """The text has more tokens than are read, or a pair's first leaves no room for the second.

    ``index`` is which of several texts it is.
    """

    index = 0


@dataclass(frozen=True, slots=True)
class Window:
    """What the model reads at once.

    ``start`` is where the text's own tokens begin in it, ``first`` which token of the text
    that is, ``size`` how many there are. Of a pair, the text is the second.
    """

    token_ids: tuple[int, ...]
    segment_ids: tuple[int, ...]
    start: int
    first: int
    size: int


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """A text in windows.

    ``spans`` are the characters of each of its tokens, ``words`` the number of the word that
    each belongs to. ``num_truncated`` tokens are in no window.
    """

    windows: tuple[Window, ...]
    spans: tuple[tuple[int, int], ...]
    words: tuple[int | None, ...]
    num_truncated: int

    @property
    def num_tokens(self) -> int:
        """Special ones and repeated ones included: what the model reads."""
        return sum(len(window.token_ids) for window in self.windows)


def tokenize_windows(
    tokenizer: HuggingFaceTokenizer,
    text: str,
    pair: str | None,
    whole: Encoding,
    limit: LengthLimit,
    *,
    spans: bool,
) -> TokenizedText:
    """``text``, or ``text`` and ``pair``, in windows.

    Args:
        tokenizer: that neither pads nor truncates.
        text: alone, or the first of a pair.
        pair: the second.
        whole: their encoding with special tokens.
        limit: of a window.
        spans: whether the reading's spans and words are needed.

    Raises:
        TooLongError: the limit says so, or a window has no room for new tokens.
    """
    main = 0 if pair is None else 1
    if len(whole.ids) <= limit.max_whole_tokens:
        window = _window(whole, main, 0)
        if not spans:
            return TokenizedText((window,), (), (), 0)
        span = slice(window.start, window.start + window.size)
        return TokenizedText((window,), tuple(whole.offsets[span]), tuple(whole.word_ids[span]), 0)
    if limit.fit == LongInput.ERROR:
        raise TooLongError(
            f"has {len(whole.ids)} tokens, at most {limit.max_whole_tokens} are accepted"
        )
    room = limit.max_tokens - tokenizer.num_special_tokens_to_add(pair is not None)
    if room < 1:
        raise _no_room(limit)
    first = tokenizer.encode(text, add_special_tokens=False)
    if pair is None:
        return _read_long(tokenizer, None, first, room, limit)
    second = tokenizer.encode(pair, add_special_tokens=False)
    if limit.fit == LongInput.WINDOWS:
        return _read_long(tokenizer, first, second, room - len(first.ids), limit)
    shorter = min(len(first.ids), len(second.ids))
    # The longer one is cut first, down to the shorter; then both alike.
    if 2 * shorter > room:
        shorter = room // 2
    sizes = (shorter, room - shorter)
    if len(first.ids) > len(second.ids):
        sizes = (room - shorter, shorter)
    num_cut = len(first.ids) - sizes[0]
    if num_cut > 0:
        first.truncate(sizes[0], direction=limit.fit.value)
    reading = _read_long(tokenizer, first, second, sizes[1], limit)
    return TokenizedText(
        reading.windows, reading.spans, reading.words, reading.num_truncated + max(0, num_cut)
    )


def _no_room(limit: LengthLimit) -> TooLongError:
    return TooLongError(f"a window of {limit.max_tokens} tokens has no room for the text")


def _read_long(
    tokenizer: HuggingFaceTokenizer,
    first: Encoding | None,
    text: Encoding,
    room: int,
    limit: LengthLimit,
) -> TokenizedText:
    """``text`` behind ``first``, if there is one, with ``room`` for its tokens."""
    if room < 1:
        raise _no_room(limit)
    num_tokens, offsets, words = len(text.ids), text.offsets, text.word_ids
    stride = 0
    if limit.fit == LongInput.WINDOWS:
        stride = room // 4 if limit.stride is None else limit.stride
        if stride >= room:
            raise TooLongError(
                f"a stride of {stride} leaves windows of {room} tokens no room for new ones"
            )
    cut_left = limit.fit == LongInput.CUT_LEFT
    text.truncate(room, stride=stride, direction="left" if cut_left else "right")
    parts = [text, *text.overflowing] if limit.fit == LongInput.WINDOWS else [text]
    start = max(0, num_tokens - room) if cut_left else 0
    windows = []
    for index, part in enumerate(parts):
        # post_process keeps what was cut off: only its first part counts.
        if first is None:
            encoding = tokenizer.post_process(part, None, True)
        else:
            encoding = tokenizer.post_process(first, part, True)
        main = 0 if first is None else 1
        windows.append(_window(encoding, main, start + index * (room - stride)))
    last = windows[-1].first + windows[-1].size
    return TokenizedText(
        windows=tuple(windows),
        spans=tuple(offsets[:last]),
        words=tuple(words[:last]),
        num_truncated=num_tokens - (last - start),
    )


def _window(encoding: Encoding, main: int, first: int) -> Window:
    # A text without special tokens, or with nothing else, is one sequence: number 0.
    numbers = encoding.sequence_ids
    size = numbers.count(main)
    return Window(
        token_ids=tuple(encoding.ids),
        segment_ids=tuple(encoding.type_ids),
        start=numbers.index(main) if size else 0,
        first=first,
        size=size,
    )


def best_windows(reading: TokenizedText) -> Sequence[tuple[int, int]]:
    """Where to look for each token: in the window in which it stands farthest from an edge.

    The start of the first window and the end of the last are no edges: there is nothing
    behind them.

    Returns:
        For each token that was read, in order: a window and an index into it.
    """
    windows = reading.windows
    start, end = windows[0].first, windows[-1].first + windows[-1].size
    chosen: dict[int, tuple[int, int, int]] = {}
    for number, window in enumerate(windows):
        last = window.first + window.size - 1
        for token in range(window.first, last + 1):
            left = token - window.first if window.first > start else end
            right = last - token if last + 1 < end else end
            context = min(left, right)
            if token not in chosen or context > chosen[token][0]:
                chosen[token] = (context, number, window.start + token - window.first)
    return [chosen[token][1:] for token in sorted(chosen)]
