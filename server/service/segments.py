"""Divides the tokens of an audio window into segments, at timestamp tokens."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

from model.bundle import TranscriptionTokens


class TokenSegment(NamedTuple):
    """A phrase's tokens without timestamps. Times are in seconds from the window's start."""

    token_ids: tuple[int, ...]
    start_seconds: float
    end_seconds: float


class DividedWindow(NamedTuple):
    """The segments of a window, in order.

    ``rest_seconds`` is the time from which on the model did not transcribe the speech; ``None`` if
    it transcribed all of it.
    """

    segments: list[TokenSegment]
    rest_seconds: float | None = None


def divide(
    token_ids: Sequence[int],
    tokens: TranscriptionTokens,
    num_seconds: float,
    *,
    is_cut: bool = False,
) -> DividedWindow:
    """Divides the tokens of a window.

    A text without a timestamp before it starts at the window's start, and one without a timestamp
    after it ends at the window's end. Two timestamps at the end, the second of which starts a
    segment, mean that the window cuts off a phrase.

    Args:
        token_ids: the generated tokens, timestamps included.
        tokens: the model's special tokens.
        num_seconds: the length of the recording in the window; later times are limited to it.
        is_cut: whether the output reached its maximum length. If so, ``rest_seconds`` is the end of
            the last whole segment, if there is one.
    """
    segments: list[TokenSegment] = []
    text: list[int] = []
    start = 0.0
    for id_ in token_ids:
        if id_ < tokens.first_timestamp:
            text.append(id_)
            continue
        seconds = (id_ - tokens.first_timestamp) * tokens.timestamp_seconds
        seconds = max(min(seconds, num_seconds), start)
        if text:
            segments.append(TokenSegment(tuple(text), start, seconds))
            text.clear()
        start = seconds
    if is_cut and segments:
        return DividedWindow(segments, segments[-1].end_seconds)
    if text:
        segments.append(TokenSegment(tuple(text), start, num_seconds))
    last = token_ids[-2:]
    goes_on = len(last) == 2 and all(id_ >= tokens.first_timestamp for id_ in last)
    return DividedWindow(segments, start if goes_on else None)


def compression_ratio(text: str) -> float:
    """Size of ``text`` divided by its size compressed with zlib; 0 for an empty text."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))
