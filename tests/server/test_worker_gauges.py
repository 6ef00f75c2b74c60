"""Gauges of workers: made at a scrape, one for each model and lane."""

import pytest
from prometheus_client import generate_latest

from server.engine.observer import WorkerStats
from server.telemetry.metrics import Metrics

NAMES = {
    "sequences_waiting": 1,
    "sequences_running": 2,
    "slots": 3,
    "cache_tokens": 4,
    "cache_capacity_tokens": 5,
    "cuda_graphs": 6,
    "cuda_graph_bytes": 7,
}


def samples(text: bytes, name: str) -> dict[str, float]:
    """The values of a gauge by labels."""
    lines = [line.rsplit(" ", 1) for line in text.decode().splitlines()]
    prefix = f"triune_{name}{{"
    return {
        line[0].removeprefix(prefix): float(line[1]) for line in lines if line[0].startswith(prefix)
    }


@pytest.mark.parametrize("name", NAMES)
def test_shows_the_latest_stats_of_each_lane(name: str) -> None:
    metrics = Metrics()
    metrics.on_stats("a", 0, WorkerStats(*range(10, 17)))
    metrics.on_stats("a", 0, WorkerStats(*range(1, 8)))
    metrics.on_stats("a", 1, WorkerStats(*[0] * 7))
    metrics.on_stats("b", 0, WorkerStats(*[9] * 7))
    found = samples(metrics.exposition(), name)
    of_a = {'lane="0",model="a"}': NAMES[name], 'lane="1",model="a"}': 0}
    assert found == of_a | {'lane="0",model="b"}': 9}
    metrics.forget("b")
    assert samples(metrics.exposition(), name) == of_a


def test_a_scrape_can_select_one_gauge() -> None:
    """As ``/metrics?name[]=triune_slots`` does."""
    metrics = Metrics()
    metrics.on_stats("a", 0, WorkerStats(*range(1, 8)))
    text = generate_latest(metrics.registry.restricted_registry(["triune_slots"]))
    assert samples(text, "slots") == {'lane="0",model="a"}': 3}
    assert not samples(text, "cache_tokens")
