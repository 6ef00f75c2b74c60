"""Fits texts and pairs to an encoder: whole, truncated, or split into overlapping windows."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tokenizers import Encoding

from server.text.templated_pair import TemplatedPair, offsets_of


class LongInput(StrEnum):
    """How a text over the length limit is handled."""

    ERROR = "error"
    TRUNCATE_RIGHT = "truncate_right"
    TRUNCATE_LEFT = "truncate_left"
    WINDOWS = "windows"


@dataclass(frozen=True, slots=True)
class LengthLimit:
    """The length limit, in tokens including special tokens, and how longer texts are handled.

    A text of up to ``max_whole_tokens`` is neither truncated nor split. A longer text is an error,
    or is truncated to, or split into windows of, ``max_tokens``. ``stride`` is the overlap of
    adjacent windows in tokens; ``None`` means a quarter of a window.
    """

    long_input: LongInput
    max_tokens: int
    max_whole_tokens: int
    stride: int | None = None


class TooLongError(Exception):
    """A text over the length limit, windows too small for new tokens, or too many windows.

    ``index`` is the position of the text in its batch.
    """

    def __init__(self, description: str, index: int = 0) -> None:
        super().__init__(description)
        self.index = index


@dataclass(frozen=True, slots=True)
class Window:
    """The input of one model run.

    The text's own tokens are ``token_ids[text_start : text_start + num_text_tokens]``; the first
    of them is token ``first_token`` of the text. For a pair, "the text" is the second text. Only
    the first ``num_attended`` tokens are attended to; ``None`` means all.
    """

    token_ids: tuple[int, ...]
    segment_ids: tuple[int, ...]
    text_start: int
    first_token: int
    num_text_tokens: int
    num_attended: int | None = None

    @property
    def end_token(self) -> int:
        """Index of the text's token after the last one in this window."""
        return self.first_token + self.num_text_tokens


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """A text, or a pair of texts, split into windows.

    ``offsets`` are the start and end of each of the text's tokens, in characters; ``word_ids`` the
    index of the word that each token belongs to. Both are empty if not requested.
    ``num_truncated_tokens`` counts tokens that are in no window. ``first_offsets`` are the offsets
    of the kept tokens of a pair's first text, which begin at ``first_start`` in each window.
    """

    windows: tuple[Window, ...]
    offsets: tuple[tuple[int, int], ...]
    word_ids: tuple[int | None, ...]
    num_truncated_tokens: int
    is_pair: bool = False
    first_start: int = 0
    first_offsets: tuple[tuple[int, int], ...] = ()

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all windows, including special tokens and overlaps."""
        return sum(len(window.token_ids) for window in self.windows)


@dataclass(slots=True)
class WindowBudget:
    """The number of windows, and of tokens in them, that a request may still use."""

    num_windows: int
    num_tokens: int

    def spend(self, num_windows: int, num_tokens: int) -> None:
        """Uses windows with ``num_tokens`` tokens in all. Call this before building them.

        Raises:
            TooLongError: fewer windows or tokens are left.
        """
        if num_windows > self.num_windows:
            raise TooLongError(
                f"needs {num_windows} windows, and {self.num_windows} are left of those that one "
                "request may have"
            )
        if num_tokens > self.num_tokens:
            raise TooLongError(
                f"needs windows of {num_tokens} tokens in all, and {self.num_tokens} are left of "
                "those that one request may have"
            )
        self.num_windows -= num_windows
        self.num_tokens -= num_tokens


def tokenize_windows(
    whole: Encoding,
    limit: LengthLimit,
    budget: WindowBudget,
    *,
    is_pair: bool,
    with_offsets: bool,
    templated: TemplatedPair | None = None,
) -> TokenizedText:
    """Splits a text, or a pair of texts, into windows.

    For a pair, windows split the second text and repeat the first. Truncation shortens the longer
    text until both are equally long, then both equally.

    Args:
        whole: the encoding of the text or of both texts, with special tokens.
        limit: the length limit, and how longer texts are handled.
        budget: the request's budget, from which the windows are taken.
        is_pair: whether ``whole`` has two texts.
        with_offsets: whether to return offsets and word ids.
        templated: the rendered pair, if a template was used.

    Raises:
        TooLongError: the text is too long, a window has no room for new tokens, or the windows
            exceed the budget.
    """
    num_tokens, most = len(whole), limit.max_whole_tokens
    if num_tokens > most and limit.long_input == LongInput.ERROR:
        raise TooLongError(f"has {num_tokens} tokens, at most {most} are accepted")
    if num_tokens <= most and not (is_pair or with_offsets):  # most texts: the shortest way
        budget.spend(1, num_tokens)
        text = _spans(whole, is_pair=False)[1]
        window = Window(tuple(whole.ids), tuple(whole.type_ids), text.start, 0, len(text))
        return TokenizedText((window,), (), (), 0)
    first, text = templated.tokens(whole) if templated else _spans(whole, is_pair=is_pair)
    kept = _Kept(first, len(text), len(text), text)
    if num_tokens > most:
        kept = _kept(num_tokens, first, text, limit)
    num_around = num_tokens - len(text) - len(first) + len(kept.first)
    starts = range(0, max(1, len(kept.text) - kept.room + kept.step), max(1, kept.step))
    num_in_windows = len(kept.text) + (len(starts) - 1) * (kept.room - kept.step)
    budget.spend(len(starts), num_in_windows + num_around * len(starts))
    ids, segments = tuple(whole.ids), tuple(whole.type_ids)
    windows = []
    for start in starts:
        part = kept.text[start : start + kept.room]
        windows.append(
            Window(
                token_ids=_joined(ids, first, kept.first, text, part),
                segment_ids=_joined(segments, first, kept.first, text, part),
                text_start=text.start - len(first) + len(kept.first) if part else 0,
                first_token=part.start - text.start,
                num_text_tokens=len(part),
            )
        )
    own = range(text.start, kept.text.stop)
    first_part, own_part = (templated.first, templated.second) if templated else (None, None)
    return TokenizedText(
        windows=tuple(windows),
        offsets=offsets_of(whole, own, own_part) if with_offsets else (),
        word_ids=tuple(whole.word_ids[own.start : own.stop]) if with_offsets else (),
        num_truncated_tokens=len(first) - len(kept.first) + len(text) - len(kept.text),
        is_pair=is_pair,
        first_start=first.start,
        first_offsets=offsets_of(whole, kept.first, first_part) if with_offsets else (),
    )


@dataclass(frozen=True, slots=True)
class _Kept:
    """The kept tokens, as ranges of the whole encoding.

    ``first`` is the range of a pair's first text, which every window repeats. ``text`` is that of
    the text, whose windows of ``room`` tokens start ``step`` tokens apart.
    """

    first: range
    room: int
    step: int
    text: range


def _spans(whole: Encoding, *, is_pair: bool) -> tuple[range, range]:
    """The token ranges of a pair's first text (empty for a single text) and of the text."""
    # Without special tokens, or with only special tokens, the library gives all tokens sequence 0.
    sequence_ids = whole.sequence_ids

    def span(sequence: int, default: int) -> range:
        count = sequence_ids.count(sequence)
        start = sequence_ids.index(sequence) if count else default
        return range(start, start + count)

    first = span(0, 0) if is_pair else range(0)
    return first, span(1, first.stop) if is_pair else span(0, 0)


def _kept(num_tokens: int, first: range, text: range, limit: LengthLimit) -> _Kept:
    """Selects the tokens to keep of a text over the limit.

    Raises ``TooLongError`` if special tokens, or the first text, leave no room.
    """
    room = limit.max_tokens - (num_tokens - len(first) - len(text))
    if room < 1:
        raise _no_room(limit)
    if limit.long_input == LongInput.WINDOWS:
        room -= len(first)
        if room < 1:
            raise _no_room(limit)
        return _Kept(first, room, room - overlap(room, limit), text)
    kept_first = first
    if first:
        shorter = min(len(first), len(text), room // 2)
        first_room = room - shorter if len(first) > len(text) else shorter
        kept_first = _cut(first, first_room, limit)
        room -= first_room
    if room < 1 and text:
        raise _no_room(limit)
    return _Kept(kept_first, room, room, _cut(text, room, limit))


def _cut(tokens: range, room: int, limit: LengthLimit) -> range:
    """The first ``room`` tokens, or the last with ``TRUNCATE_LEFT``."""
    if limit.long_input == LongInput.TRUNCATE_LEFT:
        return tokens[max(0, len(tokens) - room) :]
    return tokens[:room]


def _joined(
    whole: tuple[int, ...], first: range, kept_first: range, text: range, part: range
) -> tuple[int, ...]:
    """Replaces ``first`` by ``kept_first``, and ``text`` by ``part``, in ``whole``."""
    if not first:
        start = whole[: text.start]
    else:
        start = (
            *whole[: first.start],
            *whole[kept_first.start : kept_first.stop],
            *whole[first.stop : text.start],
        )
    return (*start, *whole[part.start : part.stop], *whole[text.stop :])


def _no_room(limit: LengthLimit) -> TooLongError:
    return TooLongError(f"a window of {limit.max_tokens} tokens has no room for the text")


def overlap(room: int, limit: LengthLimit) -> int:
    """The overlap in tokens of adjacent windows with ``room`` for the text's tokens.

    Raises:
        TooLongError: it is not less than ``room``.
    """
    stride = room // 4 if limit.stride is None else limit.stride
    if stride >= room:
        raise TooLongError(
            f"a stride of {stride} leaves windows of {room} tokens no room for new ones"
        )
    return stride


def best_windows(text: TokenizedText) -> Sequence[tuple[int, int]]:
    """For each token of the text, the window that gives it the most context.

    A token's context is its distance to the nearest edge of the window. The start of the first
    window and the end of the last one do not count as edges.

    Returns:
        For each token that is in a window, in order: the window's index and the token's index in
        it.
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
