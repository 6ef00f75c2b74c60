"""The port for Prometheus: few connections, no threads of its own."""

import asyncio
import threading
import urllib.request
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from server.frontends.http.metrics_listener import MAX_CONNECTIONS
from tests.frontends.http.raw import connect
from tests.server.in_process_server import serving

SCRAPE = b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


async def test_idle_connections_make_room_and_have_no_threads(tiny_bundles: Path) -> None:
    async with serving(tiny_bundles) as running, AsyncExitStack() as stack:
        num_threads = threading.active_count()
        idle = [
            await stack.enter_async_context(connect(running.metrics_port))
            for _ in range(MAX_CONNECTIONS + 10)
        ]
        last = await stack.enter_async_context(connect(running.metrics_port))
        await last.send(SCRAPE)
        assert b"triune_process_resident_bytes" in await last.closed()
        assert threading.active_count() < num_threads + 10  # some wait for other work
        for connection in idle[:11]:
            assert await connection.closed() == b""
        assert not idle[11].reader.at_eof()


async def test_prometheus_chooses_the_format(tiny_bundles: Path) -> None:
    def scrape(port: int, accept: str) -> str:
        url = f"http://127.0.0.1:{port}/metrics?name[]=triune_native_kernels"
        request = urllib.request.Request(url, headers={"accept": accept})
        with urllib.request.urlopen(request, timeout=60) as answer:
            text: str = answer.read().decode()
            return str(answer.headers["content-type"]) + text

    async with serving(tiny_bundles) as running:
        for accept in ("text/plain", "application/openmetrics-text"):
            answer = await asyncio.to_thread(scrape, running.metrics_port, accept)
            assert answer.startswith(accept)
            assert "triune_native_kernels{" in answer
            assert "triune_requests" not in answer


@pytest.mark.parametrize(
    "data",
    [
        b"GET /metrics?\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        SCRAPE[:-2] + b"accept: \xff\r\n\r\n",
        b"what is this\r\n\r\n",
    ],
)
async def test_hostile_scrapes_are_refused(
    tiny_bundles: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving(tiny_bundles) as running,
        connect(running.metrics_port) as connection,
    ):
        await connection.send(data)
        assert await connection.status() == 400
    assert not [record for record in caplog.records if record.exc_info]
