"""Streams that end early: what the server counts, and what it sends when it shuts down."""

import asyncio
from pathlib import Path
from typing import Any

from server.app import RunningServer
from tests.faults.serving import metric_at
from tests.frontends.conftest import DECODER
from tests.frontends.http.raw import connect
from tests.server.in_process_server import serving

ONE_SLOT = {"http": "127.0.0.1:0", "num_slots": 1, "max_queue": 0}


async def wait_for(running: RunningServer, method: str, status: str) -> None:
    """Waits until a call of ``method`` has ended with this status."""
    url = f"http://127.0.0.1:{running.metrics_port}/metrics"
    labels = {"method": method, "status": status, "model": DECODER}
    while not await asyncio.to_thread(metric_at, url, "triune_requests_total", **labels):
        pass


async def sent_at_shutdown(bundles: Path, request: bytes, **options: Any) -> bytes:
    """What a server that shuts down without grace sends of the stream that ``request`` asks for.

    The client does not read until the server drains, so the stream has not ended before.
    """
    server = serving(bundles, **ONE_SLOT | options, grace_seconds=0.0)
    port = (await server.__aenter__()).http_port
    assert port is not None
    async with connect(port, receive_bytes=4096) as connection:
        await connection.send(request)
        assert await connection.status() == 200
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        closing = asyncio.create_task(server.__aexit__(None, None, None))
        while await _is_open(port):
            pass
        connection.writer.transport.resume_reading()  # type: ignore[attr-defined]
        rest = await connection.closed()
    await closing
    return rest


async def _is_open(port: int) -> bool:
    try:
        async with connect(port):
            return True
    except ConnectionError:
        return False
