"""Clients that leave without reading their streams."""

import asyncio
from pathlib import Path

import grpc.aio
import pytest

from protos.triune.v1 import inference_pb2_grpc
from tests.faults.serving import metric_at, wait_until
from tests.faults.test_slow_readers import HEAVY, SMALL_WINDOW
from tests.server.in_process_server import serving

NUM_STREAMS = 3


@pytest.mark.parametrize("closes_connection", [False, True])
async def test_slow_readers_that_leave_are_cancelled(
    tiny_bundles: Path, closes_connection: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tiny_bundles) as running:
        url = f"http://127.0.0.1:{running.metrics_port}/metrics"

        async def reach(name: str, value: float, **labels: str) -> None:
            await asyncio.to_thread(
                wait_until, lambda: metric_at(url, name, **labels) == value, seconds=60
            )

        channel = grpc.aio.insecure_channel(f"127.0.0.1:{running.port}", options=SMALL_WINDOW)
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        streams = [stub.GenerateStream(HEAVY, timeout=120) for _ in range(NUM_STREAMS)]
        for stream in streams:
            await stream.read()
        # The sequences end, but their texts fill the window of the connection.
        await reach("triune_sequences_running", 0)
        if closes_connection:
            await channel.close()
        for stream in streams:
            stream.cancel()
        labels = {"method": "GenerateStream", "status": "CANCELLED"}
        await reach("triune_requests_total", NUM_STREAMS, **labels)
        await channel.close()
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
