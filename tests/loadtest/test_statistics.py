"""What the statistics of a window count."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest import statistics
from loadtest.statistics import Sample, Summary, TokenArrival, distribution

START = 5.0
"""Start of the window; times in the tests are relative to it."""


def _sample(
    due: float,
    finished: float,
    *arrivals: tuple[float, int],
    status: str = "OK",
    sent: float | None = None,
) -> Sample:
    return Sample(
        due_seconds=START + due,
        sent_seconds=START + (due if sent is None else sent),
        finished_seconds=START + finished,
        status=status,
        arrivals=tuple(TokenArrival(START + at, num) for at, num in arrivals),
        input_tokens=10,
        reused_tokens=4,
    )


def summarise(samples: list[Sample]) -> Summary:
    return statistics.summarise(samples, start_seconds=START, duration_seconds=10)


def test_latency_and_first_token_start_when_the_request_was_due() -> None:
    summary = summarise([_sample(1.0, 4.0, (3.0, 1), (4.0, 1), sent=2.5)])
    assert summary.latency_seconds.p50 == 3.0
    assert summary.first_token_seconds.p50 == 2.0
    assert summary.late_seconds.p50 == 1.5


def test_requests_of_the_warm_up_give_no_latency() -> None:
    summary = summarise([_sample(-1.0, 9.0), _sample(0.0, 1.0)])
    assert summary.requests == 1
    assert summary.latency_seconds.max == 1.0


def test_requests_in_flight_at_the_end_are_followed_to_their_end() -> None:
    summary = summarise([_sample(9.0, 15.0, (12.0, 3)), _sample(0.0, 1.0, (1.0, 2))])
    assert summary.requests == 2
    assert summary.latency_seconds.max == 6.0
    assert summary.output_tokens == 5
    assert summary.drain_seconds == 5.0


def test_rates_count_what_arrived_in_the_window() -> None:
    summary = summarise(
        [
            _sample(-2.0, 1.0, (-0.5, 100), (0.5, 3)),
            _sample(2.0, 3.0, (2.5, 4)),
            _sample(9.0, 12.0, (9.5, 5), (11.0, 100)),
        ]
    )
    assert summary.output_tokens_per_second == pytest.approx((3 + 4 + 5) / 10)
    assert summary.requests_per_second == pytest.approx(2 / 10)
    assert summary.input_tokens_per_second == pytest.approx(20 / 10)


def test_failures_are_counted_by_status_and_nowhere_else() -> None:
    summary = summarise(
        [
            _sample(0.0, 0.1, status="RESOURCE_EXHAUSTED"),
            _sample(0.0, 0.1, (0.05, 9), status="UNAVAILABLE"),
            _sample(0.0, 0.1, status="RESOURCE_EXHAUSTED"),
            _sample(-1.0, 0.1, status="UNAVAILABLE"),
            _sample(0.0, 2.0, (1.0, 1)),
        ]
    )
    assert summary.requests == 4
    assert summary.errors == {"RESOURCE_EXHAUSTED": 2, "UNAVAILABLE": 1}
    assert summary.output_tokens_per_second == 0.1
    assert summary.requests_per_second == 0.1
    assert summary.latency_seconds.p50 == 2.0
    assert summary.reused_tokens == 4


def test_without_tokens_the_durations_of_tokens_are_unknown() -> None:
    summary = summarise([_sample(0.0, 1.0)])
    assert summary.first_token_seconds.p50 is None
    assert summary.inter_token_seconds.p99 is None
    assert summary.output_tokens_per_second == 0


def test_a_run_without_requests() -> None:
    summary = summarise([])
    assert summary.requests == 0
    assert summary.latency_seconds.p50 is None


def test_tokens_that_arrive_together_share_their_gap() -> None:
    gaps = _sample(0.0, 4.0, (1.0, 1), (2.0, 1), (4.0, 4)).inter_token_seconds
    assert gaps == [1.0, 0.5, 0.5, 0.5, 0.5]


@given(
    st.lists(st.tuples(st.floats(0, 1000), st.integers(1, 50)), min_size=1, max_size=20),
)
def test_gaps_add_up_to_the_time_from_the_first_piece_to_the_last(
    arrivals: list[tuple[float, int]],
) -> None:
    arrivals.sort()
    sample = _sample(0.0, 1000.0, *arrivals)
    gaps = sample.inter_token_seconds
    assert len(gaps) == sample.output_tokens - arrivals[0][1]
    assert sum(gaps) == pytest.approx(arrivals[-1][0] - arrivals[0][0], abs=1e-6)


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_are_numpys(values: list[float]) -> None:
    found = distribution(values)
    assert found.p50 == np.percentile(values, 50)
    assert found.p90 == np.percentile(values, 90)
    assert found.p99 == np.percentile(values, 99)
    assert found.max == max(values)
