"""Log-sum-exp and top-k kernels against NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.runtime import host_ops
from server.runtime.kernels import logits as logits_kernels
from server.runtime.kernels.library import Kernels, supported_kernels

pytestmark = [
    pytest.mark.skipif(
        Kernels.LOGITS not in supported_kernels(), reason="this CPU cannot run the kernel"
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
def test_matches_numpy(size: int, count: int, seed: int, scale: float, forbidden: float) -> None:
    rng = np.random.default_rng(seed)
    row = (rng.normal(size=size) * scale).astype(np.float32)
    row[rng.random(size) < forbidden] = -np.inf
    row[rng.integers(size)] = 7.0
    top_indices = logits_kernels.top_indices(row, count)
    total = logits_kernels.log_sum_exp(row)
    assert total is not None
    assert total == pytest.approx(np.logaddexp.reduce(row.astype(np.float64)), abs=2e-6)
    if count > 256:
        assert top_indices is None
    else:
        assert top_indices is not None
        np.testing.assert_array_equal(top_indices, np.argsort(-row, kind="stable")[:count])


@given(
    size=st.integers(1, 300),
    num_rows=st.integers(1, 5),
    count=st.integers(0, 20),
    seed=st.integers(0, 2**32 - 1),
    forbidden=st.sampled_from([0.0, 0.5, 0.99]),
)
def test_batched_rows_match_single_rows(
    size: int, num_rows: int, count: int, seed: int, forbidden: float
) -> None:
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(num_rows, size)).astype(np.float32)
    table[rng.random(table.shape) < forbidden] = -np.inf
    table[:, rng.integers(size)] = 1.0
    results = host_ops.top_tokens_of(list(table), count)
    for row, top in zip(table, results, strict=True):
        assert top.total == host_ops.log_sum_exp(row)
        assert top == host_ops.top_tokens(row, count, top.total)


def test_rows_with_nan_have_nan_log_sum_exp() -> None:
    table = np.zeros((3, 100), np.float32)
    table[1, 7], table[2] = np.nan, -np.inf
    totals = [top.total for top in host_ops.top_tokens_of(list(table), 4)]
    assert [bool(np.isfinite(total)) for total in totals] == [True, False, False]


def test_a_row_with_nan_does_not_affect_other_rows() -> None:
    table = np.full((2, 10), -np.inf, np.float32)
    table[0], table[1, [4, 7]] = np.arange(10), [1.0, 0.0]
    table[0, 3] = np.nan
    with_nan, other = host_ops.top_tokens_of(list(table), 4)
    assert (with_nan.tokens, other.tokens) == ([9, 8, 7, 6], [4, 7])
    assert np.isnan(with_nan.logprobs).all()
    assert other == host_ops.top_tokens(table[1], 4, other.total)


@pytest.mark.parametrize("size", [5, 64, 1000])
def test_nan_never_appears_in_the_top_tokens(size: int) -> None:
    row = np.arange(size, dtype=np.float32)
    row[3] = np.nan
    total, top_indices = logits_kernels.log_sum_exp(row), logits_kernels.top_indices(row, 5)
    assert total is not None
    assert np.isnan(total)
    assert top_indices is not None
    assert top_indices.tolist() == [i for i in range(size - 1, -1, -1) if i != 3][:5]


def test_unsupported_rows_fall_back_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    row = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)[:, 0]
    assert logits_kernels.log_sum_exp(row) is None
    assert logits_kernels.top_indices(row.astype(np.float64), 3) is None
    copy = row.copy()
    with_kernel = host_ops.log_sum_exp(copy), host_ops.top_indices(copy, 4).tolist()
    monkeypatch.setattr(logits_kernels, "_LOG_SUM_EXP", None)
    monkeypatch.setattr(logits_kernels, "_TOP_INDICES", None)
    without_kernel = host_ops.log_sum_exp(copy), host_ops.top_indices(copy, 4).tolist()
    assert with_kernel[0] == pytest.approx(without_kernel[0])
    assert with_kernel[1] == without_kernel[1]
