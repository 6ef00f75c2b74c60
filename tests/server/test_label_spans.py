"""Entities from logits of spans, against the greedy search of Zaratiana et al. 2023."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.text.label_spans import SpanRules, find_spans, join_windows
from tests.gliner_models import Rules, greedy


@given(st.integers(0, 999), st.integers(1, 30), st.integers(1, 5), st.booleans(), st.booleans())
def test_takes_the_best_spans_first(
    seed: int, count: int, width: int, nested: bool, multi_label: bool
) -> None:
    logits = np.random.default_rng(seed).standard_normal((count, width, 3), np.float32)
    rules = SpanRules(0.4, nested, multi_label)
    scores = 0.5 * (1 + np.tanh(0.5 * logits))
    found = [(span.first, span.last, span.label) for span in find_spans(logits, rules)]
    assert found == greedy(scores, Rules(0.4, nested, multi_label))


def test_joins_windows_by_the_words_around_a_span() -> None:
    first, second = np.zeros((4, 2, 1), np.float32), np.ones((4, 2, 1), np.float32)
    joined = join_windows([first, second], [range(4), range(2, 6)])[..., 0]
    assert joined[:3, 0].tolist() == [0, 0, 0]
    assert joined[3:, 0].tolist() == [1, 1, 1]
    assert joined[:, 1].tolist() == pytest.approx([0, 0, 0, 1, 1, -np.inf])
