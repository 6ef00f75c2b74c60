"""Texts and pairs as token windows for an encoder: whole, truncated, or in overlapping windows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tokenizers import Encoding
from tokenizers import Tokenizer as HuggingFaceTokenizer


class LongInput(StrEnum):
    """What happens to a text that is longer than the limit."""

    ERROR = "error"
    TRUNCATE_RIGHT = "truncate_right"
    TRUNCATE_LEFT = "truncate_left"
    WINDOWS = "windows"


@dataclass(frozen=True, slots=True)
class LengthLimit:
    """The longest text, and what happens to longer ones. Tokens, special tokens included.

    A text of up to ``max_whole_tokens`` is neither truncated nor split. A longer text is an error,
    or truncated to, or split into windows of, ``max_tokens``. ``stride``: tokens that neighbouring
    windows share; ``None``: a quarter of a window.
    """

    long_input: LongInput
    max_tokens: int
    max_whole_tokens: int
    stride: int | None = None


class TooLongError(Exception):
    """A text that exceeds the limit, or windows without room for new tokens.

    ``index``: the position of the text in its batch.
    """

    index = 0


@dataclass(frozen=True, slots=True)
class Window:
    """The input of one model run.

    The text's own tokens are ``token_ids[text_start : text_start + num_text_tokens]``; the first
    of them is token ``first_token`` of the text. For a pair, "the text" is the second text.
    """

    token_ids: tuple[int, ...]
    segment_ids: tuple[int, ...]
    text_start: int
    first_token: int
    num_text_tokens: int

    @property
    def end_token(self) -> int:
        """The text's token after the last one in this window."""
        return self.first_token + self.num_text_tokens


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """A text, or a pair of texts, split into windows.

    ``offsets``: start and end of each of the text's tokens, in characters. ``word_ids``: the number
    of the word that each token belongs to. Both are empty if they were not asked for.
    ``num_truncated_tokens`` are in no window.
    """

    windows: tuple[Window, ...]
    offsets: tuple[tuple[int, int], ...]
    word_ids: tuple[int | None, ...]
    num_truncated_tokens: int

    @property
    def num_tokens(self) -> int:
        """Tokens that the model reads, special tokens and overlaps included."""
        return sum(len(window.token_ids) for window in self.windows)


def tokenize_windows(
    tokenizer: HuggingFaceTokenizer,
    text: str,
    pair: str | None,
    whole: Encoding,
    limit: LengthLimit,
    *,
    with_offsets: bool,
) -> TokenizedText:
    """Splits ``text``, or ``text`` and ``pair``, into windows.

    Of a pair, windows split the second text and repeat the first. Truncation shortens the longer
    text until both are equally long, then both alike.

    Args:
        tokenizer: without padding and truncation.
        text: alone, or the first of a pair.
        pair: the second of a pair.
        whole: the encoding of both, with special tokens.
        limit: the longest text, and what happens to longer ones.
        with_offsets: whether offsets and word ids are needed.

    Raises:
        TooLongError: the text is too long, or a window has no room for new tokens.
    """
    sequence = 0 if pair is None else 1
    if len(whole.ids) <= limit.max_whole_tokens:
        window = _window(whole, sequence, 0)
        if not with_offsets:
            return TokenizedText((window,), (), (), 0)
        own = slice(window.text_start, window.text_start + window.num_text_tokens)
        return TokenizedText((window,), tuple(whole.offsets[own]), tuple(whole.word_ids[own]), 0)
    if limit.long_input == LongInput.ERROR:
        raise TooLongError(
            f"has {len(whole.ids)} tokens, at most {limit.max_whole_tokens} are accepted"
        )
    room = limit.max_tokens - tokenizer.num_special_tokens_to_add(pair is not None)
    if room < 1:
        raise _no_room(limit)
    first = tokenizer.encode(text, add_special_tokens=False)
    if pair is None:
        return _split(tokenizer, None, first, room, limit)
    second = tokenizer.encode(pair, add_special_tokens=False)
    if limit.long_input == LongInput.WINDOWS:
        return _split(tokenizer, first, second, room - len(first.ids), limit)
    return _truncate_pair(tokenizer, first, second, room, limit)


def _truncate_pair(
    tokenizer: HuggingFaceTokenizer,
    first: Encoding,
    second: Encoding,
    room: int,
    limit: LengthLimit,
) -> TokenizedText:
    """Truncates the longer text down to the shorter one; then both alike."""
    shorter = min(len(first.ids), len(second.ids))
    if 2 * shorter > room:
        shorter = room // 2
    sizes = (shorter, room - shorter)
    if len(first.ids) > len(second.ids):
        sizes = (room - shorter, shorter)
    num_truncated = max(0, len(first.ids) - sizes[0])
    if num_truncated > 0:
        first.truncate(sizes[0], direction=_direction(limit))
    split = _split(tokenizer, first, second, sizes[1], limit)
    return replace(split, num_truncated_tokens=split.num_truncated_tokens + num_truncated)


def _direction(limit: LengthLimit) -> str:
    """The side to truncate, as the library names it."""
    return "left" if limit.long_input == LongInput.TRUNCATE_LEFT else "right"


def _no_room(limit: LengthLimit) -> TooLongError:
    return TooLongError(f"a window of {limit.max_tokens} tokens has no room for the text")


def _split(
    tokenizer: HuggingFaceTokenizer,
    first: Encoding | None,
    text: Encoding,
    room: int,
    limit: LengthLimit,
) -> TokenizedText:
    """Truncates or splits ``text`` to ``room`` tokens per window; ``first`` precedes it in each."""
    if room < 1:
        raise _no_room(limit)
    num_tokens, offsets, word_ids = len(text.ids), text.offsets, text.word_ids
    stride = _stride(room, limit)
    text.truncate(room, stride=stride, direction=_direction(limit))
    is_split = limit.long_input == LongInput.WINDOWS
    parts = [text, *text.overflowing] if is_split else [text]
    truncates_left = limit.long_input == LongInput.TRUNCATE_LEFT
    start = max(0, num_tokens - room) if truncates_left else 0
    windows = []
    for index, part in enumerate(parts):
        # post_process also returns the overflow as further parts; only the first part counts.
        if first is None:
            encoding = tokenizer.post_process(part, None, True)
        else:
            encoding = tokenizer.post_process(first, part, True)
        sequence = 0 if first is None else 1
        windows.append(_window(encoding, sequence, start + index * (room - stride)))
    end = windows[-1].end_token
    return TokenizedText(
        windows=tuple(windows),
        offsets=tuple(offsets[:end]),
        word_ids=tuple(word_ids[:end]),
        num_truncated_tokens=num_tokens - (end - start),
    )


def _stride(room: int, limit: LengthLimit) -> int:
    """Tokens that neighbouring windows share; 0 unless the text is split."""
    if limit.long_input != LongInput.WINDOWS:
        return 0
    stride = room // 4 if limit.stride is None else limit.stride
    if stride >= room:
        raise TooLongError(
            f"a stride of {stride} leaves windows of {room} tokens no room for new ones"
        )
    return stride


def _window(encoding: Encoding, sequence: int, first_token: int) -> Window:
    """A window whose text is number ``sequence`` (0 or 1) of ``encoding``."""
    # Without special tokens, or with nothing else, the library numbers all tokens 0.
    sequence_ids = encoding.sequence_ids
    num_text_tokens = sequence_ids.count(sequence)
    return Window(
        token_ids=tuple(encoding.ids),
        segment_ids=tuple(encoding.type_ids),
        text_start=sequence_ids.index(sequence) if num_text_tokens else 0,
        first_token=first_token,
        num_text_tokens=num_text_tokens,
    )


def best_windows(text: TokenizedText) -> Sequence[tuple[int, int]]:
    """For each token of the text, the window that gives it the most context.

    A token's context is its distance to the nearest edge of the window. The start of the first
    window and the end of the last one do not count as edges.

    Returns:
        For each token that is in a window, in order: a window and an index into its tokens.
    """
    windows = text.windows
    start, end = windows[0].first_token, windows[-1].end_token
    chosen: dict[int, tuple[int, int, int]] = {}
    for number, window in enumerate(windows):
        last = window.end_token - 1
        for token in range(window.first_token, window.end_token):
            left = token - window.first_token if window.first_token > start else end
            right = last - token if last + 1 < end else end
            context = min(left, right)
            if token not in chosen or context > chosen[token][0]:
                index = window.text_start + token - window.first_token
                chosen[token] = (context, number, index)
    return [chosen[token][1:] for token in sorted(chosen)]
