"""IBM model 1 finds the translations in a corpus of known ones."""

import numpy as np
import pytest

from export import ibm_model
from export.ibm_model import lexical_probabilities

NUM_WORDS = 12


def corpus(count: int, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Source ``w`` is target ``w + 100``, in another order, with a target word that has none."""
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(count):
        source = rng.choice(NUM_WORDS, 4, replace=False)
        pairs.append((source.tolist(), [*rng.permutation(source + 100).tolist(), 200]))
    return pairs


def test_finds_the_translation_of_every_word() -> None:
    table = lexical_probabilities(corpus(200))
    for word in range(NUM_WORDS):
        is_word = table.sources == word
        best = table.targets[is_word][table.probabilities[is_word].argmax()]
        assert best == word + 100
        assert 0.9 < table.probabilities[is_word].sum() <= 1.0 + 1e-9
    assert (table.sources >= 0).all()


def test_matches_the_definition() -> None:
    """One iteration by hand: two pairs, with the empty word."""
    table = lexical_probabilities([([1, 2], [7]), ([1], [8])], num_iterations=1)
    found = {
        (int(s), int(t)): float(p)
        for s, t, p in zip(table.sources, table.targets, table.probabilities, strict=True)
    }
    expected = {(1, 7): 1 / 3 / (1 / 3 + 1 / 2), (1, 8): 1 / 2 / (1 / 3 + 1 / 2), (2, 7): 1.0}
    assert found.keys() == expected.keys()
    np.testing.assert_allclose([found[key] for key in expected], list(expected.values()))


def test_stops_before_too_many_links(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = corpus(20)
    expected = lexical_probabilities(pairs[:10])
    monkeypatch.setattr(ibm_model, "MAX_LINKS", 10 * 5 * 5)
    limited = lexical_probabilities(pairs)
    np.testing.assert_array_equal(limited.sources, expected.sources)
    np.testing.assert_array_equal(limited.probabilities, expected.probabilities)
