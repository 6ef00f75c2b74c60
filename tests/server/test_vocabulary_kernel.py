"""What the host asks of a row of logits: our pass over it against numpy's several."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.decoding import sampling
from server.runtime.kernels import vocabulary
from server.runtime.kernels.library import Kernels, runnable

pytestmark = [
    pytest.mark.skipif(
        Kernels.VOCABULARY not in runnable(), reason="no kernels for this processor"
    ),
    pytest.mark.usefixtures("register_bits"),
]


@given(
    size=st.integers(1, 1500),
    count=st.integers(0, 300),
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 50.0]),
    forbidden=st.floats(0, 0.99),
)
def test_they_agree(size: int, count: int, seed: int, scale: float, forbidden: float) -> None:
    rng = np.random.default_rng(seed)
    row = (rng.normal(size=size) * scale).astype(np.float32)
    row[rng.random(size) < forbidden] = -np.inf
    row[rng.integers(size)] = 7.0
    found = vocabulary.top_indices(row, count)
    total = vocabulary.log_sum_exp(row)
    assert total is not None
    assert total == pytest.approx(np.logaddexp.reduce(row.astype(np.float64)), abs=2e-6)
    if count > 256:
        assert found is None
    else:
        assert found is not None
        np.testing.assert_array_equal(found, np.argsort(-row, kind="stable")[:count])


@given(
    size=st.integers(1, 300),
    num_rows=st.integers(1, 5),
    count=st.integers(0, 20),
    seed=st.integers(0, 2**32 - 1),
    forbidden=st.sampled_from([0.0, 0.5, 0.99]),
)
def test_rows_are_looked_at_together_as_one_by_one(
    size: int, num_rows: int, count: int, seed: int, forbidden: float
) -> None:
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(num_rows, size)).astype(np.float32)
    table[rng.random(table.shape) < forbidden] = -np.inf
    table[:, rng.integers(size)] = 1.0
    found = sampling.top_tokens_of(list(table), count)
    for row, likeliest in zip(table, found, strict=True):
        assert likeliest.total == sampling.log_sum_exp(row)
        assert likeliest == sampling.top_tokens(row, count, likeliest.total)


def test_rows_that_are_not_numbers_are_told_of() -> None:
    table = np.zeros((3, 100), np.float32)
    table[1, 7], table[2] = np.nan, -np.inf
    totals = [likeliest.total for likeliest in sampling.top_tokens_of(list(table), 4)]
    assert [bool(np.isfinite(total)) for total in totals] == [True, False, False]


@pytest.mark.parametrize("size", [5, 64, 1000])
def test_a_nan_is_told_and_never_chosen(size: int) -> None:
    row = np.arange(size, dtype=np.float32)
    row[3] = np.nan
    total, found = vocabulary.log_sum_exp(row), vocabulary.top_indices(row, 5)
    assert total is not None
    assert np.isnan(total)
    assert found is not None
    assert found.tolist() == [i for i in range(size - 1, -1, -1) if i != 3][:5]


def test_other_rows_are_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    row = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)[:, 0]
    assert vocabulary.log_sum_exp(row) is None
    assert vocabulary.top_indices(row.astype(np.float64), 3) is None
    copy = row.copy()
    with_it = sampling.log_sum_exp(copy), sampling.top_indices(copy, 4).tolist()
    monkeypatch.setattr(vocabulary, "_LOG_SUM_EXP", None)
    monkeypatch.setattr(vocabulary, "_TOP", None)
    without = sampling.log_sum_exp(copy), sampling.top_indices(copy, 4).tolist()
    assert with_it[0] == pytest.approx(without[0])
    assert with_it[1] == without[1]
