"""Host sampling: exact probabilities, and a chi-square test of sampled frequencies."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from server.engine.decoding import sampling
from server.engine.decoding.logits import best_of
from server.engine.decoding.options import Sampling
from server.runtime import host_ops

LOGITS = np.log(np.array([0.4, 0.05, 0.3, 0.15, 0.1], np.float32))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Sampling(1.0), {0: 0.4, 2: 0.3, 3: 0.15, 4: 0.1, 1: 0.05}),
        (Sampling(1.0, top_k=2), {0: 4 / 7, 2: 3 / 7}),
        (Sampling(1.0, top_p=0.69), {0: 4 / 7, 2: 3 / 7}),
        (Sampling(1.0, top_p=0.71), {0: 40 / 85, 2: 30 / 85, 3: 15 / 85}),
        (Sampling(1.0, top_k=3, top_p=0.4), {0: 1.0}),
        (Sampling(0.5, top_k=2), {0: 16 / 25, 2: 9 / 25}),
    ],
)
def test_computes_filtered_probabilities(options: Sampling, expected: dict[int, float]) -> None:
    ids, weights = sampling.probabilities(LOGITS, options)
    assert dict(zip(ids.tolist(), weights.tolist(), strict=True)) == pytest.approx(expected, 1e-5)


@pytest.mark.parametrize("options", [{"top_p": 0.95}, {"min_p": 1e-4}, {"typical_p": 0.9}])
@pytest.mark.parametrize("top_k", [2000, 2001, 2**31 - 1])
def test_a_top_k_of_the_vocabulary_or_more_keeps_all_tokens(
    options: dict[str, Any], top_k: int
) -> None:
    logits = np.random.default_rng(0).normal(0, 1, 2000).astype(np.float32)
    for found, expected in zip(
        sampling.probabilities(logits, Sampling(1.0, top_k=top_k, **options)),
        sampling.probabilities(logits, Sampling(1.0, **options)),
        strict=True,
    ):
        assert len(expected) > 256
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "options",
    [
        Sampling(1.0),
        Sampling(0.7, top_k=40),
        Sampling(1.3, top_p=0.9),
        Sampling(1.0, top_k=30, top_p=0.8),
        Sampling(1.0, min_p=0.05),
        Sampling(0.9, typical_p=0.6),
        Sampling(2.0, top_k=100, top_p=0.95, min_p=0.01, typical_p=0.9),
    ],
    ids=str,
)
def test_samples_follow_the_transformers_distribution(options: Sampling) -> None:
    """Chi-square test of 20,000 draws against the reference probabilities."""
    logits = np.random.default_rng(5).normal(0, 3, 500).astype(np.float32)
    scores = torch.from_numpy(logits)[None]
    ids = torch.zeros(1, 1, dtype=torch.long)
    warpers: list[LogitsProcessor] = [TemperatureLogitsWarper(options.temperature)]
    if options.top_k:
        warpers.append(TopKLogitsWarper(options.top_k))
    if options.top_p < 1:
        warpers.append(TopPLogitsWarper(options.top_p))
    if options.min_p:
        warpers.append(MinPLogitsWarper(options.min_p))
    if options.typical_p < 1:
        warpers.append(TypicalLogitsWarper(options.typical_p))
    for warper in warpers:
        scores = warper(ids, scores)
    expected = scores.softmax(-1)[0].double().numpy()
    candidate_ids, weights = sampling.probabilities(logits, options)
    dense = np.zeros_like(expected)
    dense[candidate_ids] = weights
    np.testing.assert_allclose(dense, expected, atol=1e-6)

    generator = np.random.default_rng(7)
    draws = np.array([sampling.sample(logits, options, generator.random()) for _ in range(20_000)])
    counts = np.bincount(draws, minlength=len(logits))
    common = expected * len(draws) >= 5  # pool rare tokens into one class
    observed = np.append(counts[common], counts[~common].sum())
    expected_counts = np.append(expected[common], expected[~common].sum()) * len(draws)
    observed, expected_counts = observed[expected_counts > 0], expected_counts[expected_counts > 0]
    assert not counts[expected == 0].any()
    statistic = float(((observed - expected_counts) ** 2 / expected_counts).sum())
    # False positive rate 1e-4; the seed is fixed.
    assert statistic < chi_square_quantile(len(expected_counts) - 1)


def chi_square_quantile(freedom: int) -> float:
    """The 0.9999 quantile (Wilson-Hilferty approximation)."""
    if freedom == 0:
        return 1e-9
    third = 2 / (9 * freedom)
    return float(freedom * (1 - third + 3.719 * third**0.5) ** 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_best_of_returns_no_token_for_non_finite_logits(bad: float) -> None:
    logits = np.stack([LOGITS, LOGITS])
    logits[1, 2] = bad
    assert best_of(logits) == [0, None]


def test_computes_token_logprobs() -> None:
    logprob = sampling.token_logprob(LOGITS, 3, 2)
    assert logprob.logprob == pytest.approx(np.log(0.15), abs=1e-6)
    assert [id_ for id_, _ in logprob.top] == [0, 2]
    assert logprob.top[1][1] == pytest.approx(np.log(0.3), abs=1e-6)
    np.testing.assert_allclose(sampling.log_probabilities(LOGITS + 7), LOGITS, atol=1e-6)


@given(
    size=st.integers(1, 700),
    count=st.integers(1, 40),
    seed=st.integers(0, 99),
    levels=st.sampled_from([2, 50, 10_000]),
    forbidden=st.floats(0, 1),
)
def test_top_indices_match_a_full_sort(
    size: int, count: int, seed: int, levels: int, forbidden: float
) -> None:
    """Rows have ties and many -inf values."""
    rng = np.random.default_rng(seed)
    row = rng.integers(0, levels, size).astype(np.float32)
    row[rng.random(size) < forbidden] = -np.inf
    top = host_ops.top_indices(row, count)
    assert len(set(top.tolist())) == min(count, size)
    np.testing.assert_array_equal(row[top], np.sort(row)[::-1][:count])


def test_top_tokens_omit_tokens_with_zero_probability() -> None:
    row = np.where(np.arange(500) % 100 == 0, 1.0, -np.inf).astype(np.float32)
    top = host_ops.top_tokens(row, 20, host_ops.log_sum_exp(row))
    assert top.tokens == [0, 100, 200, 300, 400]
    assert top.logprobs == pytest.approx([np.log(1 / 5)] * 5)
