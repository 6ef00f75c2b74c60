"""Divides the tokens of a window of speech into segments, by their timestamps."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

from model.bundle import TranscriptionTokens


class TokenSegment(NamedTuple):
    """Tokens of a phrase, without timestamps. Times are in seconds from the window's start."""

    token_ids: tuple[int, ...]
    start_seconds: float
    end_seconds: float


def divide(
    token_ids: Sequence[int], tokens: TranscriptionTokens, num_seconds: float
) -> list[TokenSegment]:
    """The segments of a window, in order.

    A segment that lacks a timestamp begins at the end of the segment before it, or at the window's
    start, and ends at the window's end.

    Args:
        token_ids: generated in the window, timestamps included.
        tokens: the model's special tokens.
        num_seconds: of speech in the window; no time is later.
    """
    segments: list[TokenSegment] = []
    text: list[int] = []
    start = 0.0

    def close(end: float) -> None:
        if text:
            segments.append(TokenSegment(tuple(text), start, end))
            text.clear()

    for id_ in token_ids:
        if id_ < tokens.first_timestamp:
            text.append(id_)
            continue
        steps = id_ - tokens.first_timestamp
        seconds = min(steps * tokens.timestamp_seconds, num_seconds)
        close(max(seconds, start))
        start = max(seconds, start)
    close(num_seconds)
    return segments


def compression_ratio(text: str) -> float:
    """Bytes of ``text`` to its bytes compressed by zlib; 0 for an empty text."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))
