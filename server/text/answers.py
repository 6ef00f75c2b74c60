"""From logits of starts and ends to the parts of a text that answer a question."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from server.engine.requests.sequence import Floats
from server.text.windows import TokenizedText


@dataclass(frozen=True, slots=True)
class Span:
    """Characters from ``start`` to ``end``; both 0 for no answer."""

    score: float
    start: int
    end: int


def find_answers(
    reading: TokenizedText,
    logits: Sequence[Floats],
    *,
    top_k: int,
    max_answer_tokens: int,
    allow_none: bool,
) -> list[Span]:
    """The best spans over all windows, best first.

    A span's score is the probability of its start times that of its end, among the tokens of
    the context in its window and the first token, which stands for no answer (Devlin et al.
    2018, section 4.3). Spans are widened to whole words. That there is no answer is as likely
    as it is in the window where it is least so.

    Args:
        reading: of the question and the context.
        logits: of each window, ``[length, 2]``.
        top_k: at most so many.
        max_answer_tokens: the longest span.
        allow_none: whether no answer may be among them.
    """
    best: dict[tuple[int, int], float] = {}
    none_score = 1.0
    for window, window_logits in zip(reading.windows, logits, strict=True):
        context = np.arange(window.start, window.start + window.size)
        # The first token, then the context.
        rows = window_logits[np.concatenate([[0], context])].astype(np.float64)
        weights = np.exp(rows - rows.max(0))
        start, end = (weights / weights.sum(0)).T
        none_score = min(none_score, float(start[0] * end[0]))
        for first, last, score in _best_pairs(start[1:], end[1:], max_answer_tokens, top_k):
            span = _characters(reading, window.first + first, window.first + last)
            best[span] = max(score, best.get(span, 0.0))
    spans = [Span(score, *characters) for characters, score in best.items()]
    if allow_none:
        spans.append(Span(none_score, 0, 0))
    return sorted(spans, key=lambda span: -span.score)[:top_k]


def _best_pairs(
    start: Floats, end: Floats, max_length: int, top_k: int
) -> Iterable[tuple[int, int, float]]:
    """First token, last token and score of the likeliest spans."""
    size = len(start)
    # A band: [size, max_length], the last token from first to first + max_length - 1.
    lengths = min(max_length, size)
    lasts = np.arange(size)[:, None] + np.arange(lengths)
    scores = np.where(lasts < size, start[:, None] * end[np.minimum(lasts, size - 1)], -1.0)
    flat = scores.ravel()
    # Spans of the same words become one, so more are looked at than are wanted.
    count = min(len(flat), top_k * 4)
    order = np.argpartition(-flat, count - 1)[:count] if count else np.empty(0, np.int64)
    for index in order[np.argsort(-flat[order], kind="stable")]:
        if flat[index] >= 0:
            first, length = divmod(int(index), lengths)
            yield first, first + length, float(flat[index])


def _characters(reading: TokenizedText, first: int, last: int) -> tuple[int, int]:
    """The characters of the words that tokens ``first`` to ``last`` belong to."""
    words = reading.words
    if words[first] is not None:
        while first > 0 and words[first - 1] == words[first]:
            first -= 1
    if words[last] is not None:
        while last + 1 < len(words) and words[last + 1] == words[last]:
            last += 1
    return reading.spans[first][0], reading.spans[last][1]
