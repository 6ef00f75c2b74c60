"""From samples to figures. Pure: no clock, no network.

The measurement is a window of ``duration_seconds`` that starts when the warm-up is over; all
times are in seconds from some moment before it.

- Latencies, ``requests`` and ``errors`` are of the requests that were *due* in the window,
  each followed to its end even if that lies after the window. Leaving out those that were
  still in flight would leave out the slowest.
- Rates count what *arrived* in the window (answers, tokens), whenever it was asked for, and
  divide by its length. So neither the warm-up nor the tail, when the load dies down, counts.
- Latency and time to first token start when the request was due, not when it was sent: a
  client that could not send in time must not hide it (coordinated omission). In a closed
  loop the two are the same.
- Tokens that arrive together share the gap since the piece before them, so the gaps of a
  request add up to the time from its first piece to its last.
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
    """One request, as its client saw it."""

    due_seconds: float
    sent_seconds: float
    finished_seconds: float
    status: str = OK
    """The name of a gRPC status."""
    arrivals: tuple[TokenArrival, ...] = ()
    """Empty for a request without generated tokens."""
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
    """Of a duration in seconds; every value is ``None`` if nothing was measured."""

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
    """From the end of the window until the last request ended."""
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
    """From when a request was due until it was sent: the load generator's own delay."""


def distribution(values: Sequence[float]) -> Distribution:
    """Percentiles by linear interpolation (``numpy.percentile``)."""
    if not values:
        return Distribution(p50=None, p90=None, p99=None, mean=None, max=None)
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return Distribution(p50=p50, p90=p90, p99=p99, mean=float(np.mean(values)), max=max(values))


def summarise(
    samples: Sequence[Sample], *, start_seconds: float, duration_seconds: float
) -> Summary:
    """The figures of the window that starts at ``start_seconds``."""
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
