"""Samplers: exact supports, and drawn frequencies by a chi-square test."""

import numpy as np
import pytest

from server.engine import sampling
from server.engine.sequence import GenerationJob, Sampling, Sequence, Times

LOGITS = np.log(np.array([0.4, 0.05, 0.3, 0.15, 0.1], np.float32))


def row(options: Sampling) -> Sequence:
    generator = None if options.is_greedy else np.random.default_rng(options.seed)
    return Sequence(1, GenerationJob((1,), 1, sampling=options), Times(0.0), generator)


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
def test_probabilities(options: Sampling, expected: dict[int, float]) -> None:
    ids, weights = sampling.probabilities(LOGITS, options)
    assert dict(zip(ids.tolist(), weights.tolist(), strict=True)) == pytest.approx(expected, 1e-5)


def test_draws_follow_the_probabilities() -> None:
    options = Sampling(1.0, top_p=0.94, seed=7)
    sequence = row(options)
    draws = [sampling.choose(LOGITS[None], [sequence])[0] for _ in range(20_000)]
    ids, weights = sampling.probabilities(LOGITS, options)
    counts = np.array([draws.count(int(id_)) for id_ in ids])
    assert counts.sum() == len(draws)
    statistic = ((counts - len(draws) * weights) ** 2 / (len(draws) * weights)).sum()
    # 99.99 % quantile of chi-square with 3 degrees of freedom: one false alarm in 10,000 seeds.
    assert len(ids) == 4
    assert statistic < 21.1


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    logits = np.stack([LOGITS, LOGITS, LOGITS])
    rows = [row(Sampling()), row(Sampling(1.0, seed=3)), row(Sampling())]
    chosen = sampling.choose(logits, rows)
    assert chosen[0] == chosen[2] == 0
    assert chosen[1] == sampling.choose(LOGITS[None], [row(Sampling(1.0, seed=3))])[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_has_no_token(bad: float) -> None:
    logits = np.stack([LOGITS, LOGITS])
    logits[1, 2] = bad
    assert sampling.choose(logits, [row(Sampling()), row(Sampling())]) == [0, None]
