"""The search for the most probable spans of an answer."""

import tracemalloc

import numpy as np
import pytest

from server.text.answers import Floats, ScoredSpan, find_answers
from server.text.windows import TokenizedText, Window

_START = 2  # of the context, after a token for no answer and one of the question


def _text(size: int) -> TokenizedText:
    """A context of ``size`` tokens of a character each, after a question of one token."""
    ids = (0,) * (size + _START)
    window = Window(ids, ids, _START, first_token=0, num_text_tokens=size)
    return TokenizedText(
        (window,), tuple((at, at + 1) for at in range(size)), tuple(range(size)), 0, is_pair=True
    )


def _logits(size: int, seed: int) -> Floats:
    return np.random.default_rng(seed).normal(0, 3, (size + _START, 2)).astype(np.float32)


def _best_of_all(logits: Floats, top_k: int, longest: int) -> list[ScoredSpan]:
    """The best spans, by the score of every span."""
    rows = np.delete(logits, 1, 0).astype(np.float64)
    weights = np.exp(rows - rows.max(0))
    start, end = (weights / weights.sum(0)).T[:, 1:]
    spans = [
        ScoredSpan(float(start[first] * end[last]), first, last + 1)
        for first in range(len(start))
        for last in range(first, min(first + longest, len(end)))
    ]
    return sorted(spans, key=lambda span: -span.score)[:top_k]


@pytest.mark.parametrize("seed", range(40))
def test_spans_are_the_best_of_all_spans(seed: int) -> None:
    size, longest, top_k = 1 + seed, 1 + seed * 7 % 45, 1 + seed % 9
    logits = _logits(size, seed)
    found = find_answers(
        _text(size), [logits], top_k=top_k, max_answer_tokens=longest, allow_no_answer=False
    )
    assert found == _best_of_all(logits, top_k, longest)


def test_a_long_answer_in_a_long_context_needs_little_memory() -> None:
    size = 8000
    text, logits = _text(size), _logits(size, 0)
    tracemalloc.start()
    try:
        find_answers(text, [logits], top_k=4, max_answer_tokens=size, allow_no_answer=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20, f"{peak:,} bytes for {size**2 // 2:,} spans"
