"""Floods of connections, pings and calls: a well-behaved client is still served."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from client.sync import Client
from tests.faults.http2 import (
    ENHANCE_YOUR_CALM,
    GOAWAY,
    PING,
    RST_STREAM,
    connection,
    frame,
    frames,
    open_stream,
)
from tests.faults.record import percentile, record
from tests.faults.serving import DECODER, faulty_server, metric
from tests.serving import ServerProcess

pytestmark = pytest.mark.heavy

GENERATE = "/triune.v1.InferenceService/Generate"
NUM_CONNECTIONS = 1000
NUM_STREAMS = 5000
NUM_REQUESTS = 50


@pytest.fixture(scope="module")
def server(tiny_bundles: Path) -> Iterator[ServerProcess]:
    with faulty_server(tiny_bundles) as running:
        yield running


def good_latencies(server: ServerProcess) -> list[float]:
    """Request latencies of a well-behaved client on its own connection, in seconds."""
    latencies = []
    with Client(server.target, timeout_seconds=60) as client:
        expected = client.generate(DECODER, "7,", max_new_tokens=4).outputs[0].text
        for _ in range(NUM_REQUESTS):
            started = time.monotonic()
            assert client.generate(DECODER, "7,", max_new_tokens=4).outputs[0].text == expected
            latencies.append(time.monotonic() - started)
    return latencies


def test_disconnects_clients_that_ping_too_often(server: ServerProcess) -> None:
    with connection(server.port) as flood:
        flood.sendall(frame(PING, b"12345678") * 100)
        received = list(frames(flood))
    goaways = [payload for kind, payload in received if kind == GOAWAY]
    assert goaways
    assert int.from_bytes(goaways[0][4:8], "big") == ENHANCE_YOUR_CALM
    good_latencies(server)


def test_serves_a_good_client_among_a_thousand_bad_ones(server: ServerProcess) -> None:
    """1,000 connections with a call that never sends its request, and one connection with more
    calls than the limit per connection."""
    latencies_before = good_latencies(server)
    with ExitStack() as stack:
        for _ in range(NUM_CONNECTIONS):
            sock = stack.enter_context(connection(server.port))
            sock.sendall(open_stream(1, GENERATE))
        flood = stack.enter_context(connection(server.port))
        streams = range(1, 2 * NUM_STREAMS, 2)
        with suppress(ConnectionError):  # the server may disconnect it early
            for stream in streams:
                flood.sendall(open_stream(stream, GENERATE))
        assert any(kind in {RST_STREAM, GOAWAY} for kind, _ in frames(flood)), (
            "the flood was not rejected"
        )
        latencies_during = good_latencies(server)
    latencies_after = good_latencies(server)
    assert metric(server, "triune_sequences_running", model=DECODER) == 0
    record(
        14,
        "1,000 connections whose calls never send a request; floods of calls and of pings",
        "limits hold, and a well-behaved client is served",
        connections=NUM_CONNECTIONS,
        calls=NUM_STREAMS,
        p99_before_milliseconds=1000 * percentile(latencies_before, 0.99),
        p99_meanwhile_milliseconds=1000 * percentile(latencies_during, 0.99),
        p99_after_milliseconds=1000 * percentile(latencies_after, 0.99),
    )
