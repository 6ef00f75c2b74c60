"""Finds answer spans from a question-answering model's start and end logits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server.text.windows import TokenizedText

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """An answer: the characters ``start`` to ``end`` of the context; both are 0 for no answer."""

    score: float
    start: int
    end: int


def find_answers(
    text: TokenizedText,
    logits: Sequence[Floats],
    *,
    top_k: int,
    max_answer_tokens: int,
    allow_no_answer: bool,
) -> list[ScoredSpan]:
    """The best spans over all windows, best first.

    A span's score is the probability of its start times the probability of its end. Each is a
    softmax over the context's tokens in the window and the first token, which stands for "no
    answer" (Devlin et al. 2018, section 4.3). Spans are extended to whole words. The score of "no
    answer" is its minimum over all windows.

    Args:
        text: question and context.
        logits: start and end logits of each window, ``[length, 2]``.
        top_k: maximum number of spans.
        max_answer_tokens: maximum length of a span.
        allow_no_answer: whether the spans may include "no answer".
    """
    best: dict[tuple[int, int], float] = {}
    none_score = 1.0
    for window, window_logits in zip(text.windows, logits, strict=True):
        context = np.arange(window.text_start, window.text_start + window.num_text_tokens)
        # [1 + context, 2]: the first token, then the context's.
        rows = window_logits[np.concatenate([[0], context])].astype(np.float64)
        weights = np.exp(rows - rows.max(0))
        start, end = (weights / weights.sum(0)).T
        none_score = min(none_score, float(start[0] * end[0]))
        for first, last, score in _best_pairs(start[1:], end[1:], max_answer_tokens, top_k):
            span = _whole_words(text, window.first_token + first, window.first_token + last)
            best[span] = max(score, best.get(span, 0.0))
    spans = [ScoredSpan(score, *characters) for characters, score in best.items()]
    if allow_no_answer:
        spans.append(ScoredSpan(none_score, 0, 0))
    return sorted(spans, key=lambda span: -span.score)[:top_k]


def _best_pairs(
    start: Floats, end: Floats, max_length: int, top_k: int
) -> Iterable[tuple[int, int, float]]:
    """Yields first token, last token and score of the best spans, best first."""
    size, length = len(start), min(max_length, len(start))
    # More candidates than are returned, because spans of the same words are merged.
    count = top_k * 4
    if not size:
        return
    # The best spans have only such first tokens: other tokens' best spans are worse than theirs.
    firsts = _largest(start * _window_maxima(end, length), count)
    # [firsts, length]: for each first token, the last tokens first … first + length - 1.
    lasts = firsts[:, None] + np.arange(length)
    scores = np.where(lasts < size, start[firsts, None] * end[np.minimum(lasts, size - 1)], -1.0)
    flat = scores.ravel()
    for index in _largest(flat, count):
        if flat[index] >= 0:
            row, offset = divmod(int(index), length)
            first = int(firsts[row])
            yield first, first + offset, float(flat[index])


def _largest(values: Floats, count: int) -> npt.NDArray[np.intp]:
    """The indices of the ``count`` largest values, largest first."""
    count = min(count, len(values))
    found = np.argpartition(-values, count - 1)[:count]
    return found[np.argsort(-values[found], kind="stable")]


def _window_maxima(values: Floats, length: int) -> Floats:
    """The maximum of each ``values[i : i + length]``, in linear time.

    Source: van Herk 1992, Gil and Werman 1993. A window spans at most two blocks of ``length``.
    """
    size = len(values)
    blocks = np.full((size // length + 2, length), -np.inf)
    blocks.ravel()[:size] = values
    from_start = np.maximum.accumulate(blocks, 1).ravel()
    to_end = np.maximum.accumulate(blocks[:, ::-1], 1)[:, ::-1].ravel()
    return np.maximum(to_end[:size], from_start[length - 1 : length - 1 + size])


def _whole_words(text: TokenizedText, first: int, last: int) -> tuple[int, int]:
    """The start and end, in characters, of the words with the tokens ``first`` to ``last``."""
    words = text.word_ids
    if words[first] is not None:
        while first > 0 and words[first - 1] == words[first]:
            first -= 1
    if words[last] is not None:
        while last + 1 < len(words) and words[last + 1] == words[last]:
            last += 1
    return text.offsets[first][0], text.offsets[last][1]
