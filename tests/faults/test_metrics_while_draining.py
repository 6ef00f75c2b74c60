"""Metrics of a server that drains: Prometheus still reads them."""

import signal
from pathlib import Path

import grpc

from client.sync import Client
from tests.faults.serving import DECODER, LONG, faulty_server, metric, status_of, wait_until


def test_metrics_are_served_until_the_last_call_ends(tiny_bundles: Path) -> None:
    with (
        faulty_server(tiny_bundles, run_seconds=0.1) as server,
        Client(server.target, timeout_seconds=60) as client,
    ):
        stream = client.generate_stream(DECODER, "1,", **LONG)
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        wait_until(
            lambda: (
                status_of(lambda: client.generate(DECODER, "1,", max_new_tokens=1))
                == grpc.StatusCode.UNAVAILABLE
            )
        )
        assert metric(server, "triune_sequences_running", model=DECODER) == 1
        stream.close()
        assert server.process.wait(timeout=60) == 0
