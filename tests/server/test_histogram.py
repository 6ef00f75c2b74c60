"""Histograms: the same text for Prometheus as its library's own, from any thread."""

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from server.telemetry.metrics import SECONDS_BUCKETS, Metrics

DURATIONS = st.lists(st.floats(0, 100) | st.sampled_from(SECONDS_BUCKETS))


def lines_of(text: bytes, name: str) -> list[str]:
    return [
        line
        for line in text.decode().splitlines()
        if line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(name)
        and "_created" not in line
    ]


@given(durations=DURATIONS, name=st.text(max_size=4))
def test_exposition_is_that_of_the_library(durations: Sequence[float], name: str) -> None:
    own, registry = Metrics(), CollectorRegistry()
    theirs = Histogram(
        "triune_step_seconds",
        "Steps of the engine: one or more runs.",
        ["model"],
        buckets=SECONDS_BUCKETS,
        registry=registry,
    ).labels(name)
    for duration in durations:
        own.on_step(name, duration)
        theirs.observe(duration)
    expected = lines_of(generate_latest(registry), "triune_step_seconds")
    found = lines_of(own.exposition(), "triune_step_seconds")
    assert found == (expected if durations else expected[:2])


def test_values_of_several_threads_are_all_counted() -> None:
    own, num_threads, num_calls = Metrics(), 4, 2000

    def observe() -> None:
        for _ in range(num_calls):
            own.on_next_tokens("model", [0.01, 0.2])

    threads = [threading.Thread(target=observe) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (count,) = lines_of(own.exposition(), "triune_inter_token_seconds_count")
    (total,) = lines_of(own.exposition(), "triune_inter_token_seconds_sum")
    assert float(count.split()[-1]) == 2 * num_threads * num_calls
    assert float(total.split()[-1]) == pytest.approx(0.21 * num_threads * num_calls)
