"""Ten thousand HTTP connections that send nothing, beside one that does."""

import http.client
import resource
import socket
import time
from pathlib import Path

import pytest

from tests.faults.record import percentile, record
from tests.faults.serving import faulty_server
from tests.faults.test_slow_readers import resident_bytes

pytestmark = pytest.mark.heavy

NUM_IDLE = 10_000
NUM_REQUESTS = 50
BODY = b'{"model":"tiny-decoder","prompt":"7,","max_tokens":4,"temperature":0}'


def test_idle_connections_do_not_harm(tiny_bundles: Path) -> None:
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < NUM_IDLE + 500:
        pytest.skip("this machine does not allow as many open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (NUM_IDLE + 500, hard))
    idle: list[socket.socket] = []
    try:
        with faulty_server(tiny_bundles) as server:
            before = resident_bytes(server.process.pid)
            connection = http.client.HTTPConnection("127.0.0.1", server.http_port)
            latencies = {0: latency(connection)}
            # Each source address has ports of its own.
            for number in range(NUM_IDLE):
                source = (f"127.0.0.{2 + number % 4}", 0)
                target = ("127.0.0.1", server.http_port)
                idle.append(socket.create_connection(target, source_address=source))
            latencies[NUM_IDLE] = latency(connection)
            grown = resident_bytes(server.process.pid) - before
    finally:
        for opened in idle:
            opened.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    assert grown < NUM_IDLE * 32_768
    record(
        14,
        "10,000 idle HTTP connections",
        "others are served as before",
        idle=NUM_IDLE,
        median_alone_milliseconds=1000 * latencies[0],
        median_meanwhile_milliseconds=1000 * latencies[NUM_IDLE],
        kB_per_connection=grown / NUM_IDLE / 1e3,
    )


def latency(connection: http.client.HTTPConnection) -> float:
    """The median seconds of a request, all of which must succeed."""
    seconds = []
    for _ in range(NUM_REQUESTS):
        started = time.monotonic()
        connection.request("POST", "/v1/completions", BODY)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
        seconds.append(time.monotonic() - started)
    return percentile(seconds, 0.5)
