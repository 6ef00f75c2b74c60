"""Computes statistics from samples. Pure: no clock, no network.

What is measured is a window of ``duration_seconds`` that starts after the warm-up. All times
are in seconds since the start of the run.

- Latencies, ``requests`` and ``errors`` cover the requests that were *due* in the window. Each
  is followed to its end, even after the window: dropping requests in flight would drop the
  slowest.
- Rates count what *arrived* in the window (responses, tokens), whenever it was requested, and
  divide by the window's length. So neither warm-up nor the tail of the run counts.
- Latency and time to first token start when a request was due, not when it was sent. A client
  that sends late must not hide the delay (coordinated omission). In a closed loop both times
  are equal.
- Tokens that arrive together share the gap since the previous piece, so the gaps of a request
  add up to the time from its first piece to its last.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

OK = "OK"


@dataclass(frozen=True, slots=True)
class TokenArrival:
    at_seconds: float
    num_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One request, as its client measured it."""

    due_seconds: float
    sent_seconds: float
    finished_seconds: float
    status: str = OK
    """Name of the gRPC status."""
    arrivals: tuple[TokenArrival, ...] = ()
    """Empty for requests that generate nothing."""
    input_tokens: int = 0
    reused_tokens: int = 0

    @property
    def output_tokens(self) -> int:
        return sum(arrival.num_tokens for arrival in self.arrivals)

    @property
    def inter_token_seconds(self) -> list[float]:
        gaps: list[float] = []
        for before, after in zip(self.arrivals, self.arrivals[1:], strict=False):
            gap = (after.at_seconds - before.at_seconds) / after.num_tokens
            gaps += [gap] * after.num_tokens
        return gaps


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """Distribution of a duration in seconds; all values are ``None`` without samples."""

    p50: float | None
    p90: float | None
    p99: float | None
    mean: float | None
    max: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    requests: int
    errors: dict[str, int]
    duration_seconds: float
    drain_seconds: float
    """Time from the end of the window to the end of the last request."""
    requests_per_second: float
    output_tokens_per_second: float
    input_tokens_per_second: float
    input_tokens: int
    output_tokens: int
    reused_tokens: int
    latency_seconds: Distribution
    first_token_seconds: Distribution
    inter_token_seconds: Distribution
    late_seconds: Distribution
    """Delay from due time to sending, caused by the load generator itself."""


def distribution(values: Sequence[float]) -> Distribution:
    """Percentiles by linear interpolation (``numpy.percentile``)."""
    if not values:
        return Distribution(p50=None, p90=None, p99=None, mean=None, max=None)
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return Distribution(p50=p50, p90=p90, p99=p99, mean=float(np.mean(values)), max=max(values))


def summarise(
    samples: Sequence[Sample], *, start_seconds: float, duration_seconds: float
) -> Summary:
    """The statistics of the window that starts at ``start_seconds``."""
    end_seconds = start_seconds + duration_seconds

    def in_window(at_seconds: float) -> bool:
        return start_seconds <= at_seconds < end_seconds

    due = [sample for sample in samples if in_window(sample.due_seconds)]
    done = [sample for sample in due if sample.status == OK]
    answered = [sample for sample in samples if sample.status == OK]
    arrived_answers = [sample for sample in answered if in_window(sample.finished_seconds)]
    arrived_tokens = sum(
        arrival.num_tokens
        for sample in answered
        for arrival in sample.arrivals
        if in_window(arrival.at_seconds)
    )
    streamed = [sample for sample in done if sample.arrivals]
    last_seconds = max((sample.finished_seconds for sample in samples), default=end_seconds)
    return Summary(
        requests=len(due),
        errors=dict(Counter(sample.status for sample in due if sample.status != OK)),
        duration_seconds=duration_seconds,
        drain_seconds=max(0.0, last_seconds - end_seconds),
        requests_per_second=len(arrived_answers) / duration_seconds,
        output_tokens_per_second=arrived_tokens / duration_seconds,
        input_tokens_per_second=sum(sample.input_tokens for sample in arrived_answers)
        / duration_seconds,
        input_tokens=sum(sample.input_tokens for sample in done),
        output_tokens=sum(sample.output_tokens for sample in done),
        reused_tokens=sum(sample.reused_tokens for sample in done),
        latency_seconds=distribution([row.finished_seconds - row.due_seconds for row in done]),
        first_token_seconds=distribution(
            [row.arrivals[0].at_seconds - row.due_seconds for row in streamed]
        ),
        inter_token_seconds=distribution(
            [gap for row in streamed for gap in row.inter_token_seconds]
        ),
        late_seconds=distribution([row.sent_seconds - row.due_seconds for row in due]),
    )
