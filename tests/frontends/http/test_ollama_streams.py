"""Streams of Ollama's API that end early: clients that leave, and a server that stops."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import ollama
import pytest

from server.app import RunningServer
from tests.faults.serving import metric_at
from tests.frontends.conftest import DECODER
from tests.frontends.http.raw import connect, post
from tests.server.in_process_server import serving

ONE_SLOT = {"http": "127.0.0.1:0", "num_slots": 1, "max_queue": 0}
LONG = {"ignore_eos": True, "num_predict": 250}
ASK = [{"role": "user", "content": "7,"}]


def client_of(running: RunningServer) -> ollama.AsyncClient:
    return ollama.AsyncClient(host=f"http://127.0.0.1:{running.http_port}")


async def wait_for(running: RunningServer, status: str) -> None:
    """Waits until a chat has ended with this status."""
    url = f"http://127.0.0.1:{running.metrics_port}/metrics"
    labels = {"method": "/api/chat", "status": status, "model": DECODER}
    while not await asyncio.to_thread(metric_at, url, "triune_requests_total", **labels):
        pass


async def can_generate(client: ollama.AsyncClient) -> bool:
    """Whether the only slot is free."""
    with suppress(ollama.ResponseError):
        await client.generate(DECODER, "7,", options={"num_predict": 1})
        return True
    return False


@pytest.mark.parametrize("whole", [False, True])
async def test_a_client_that_leaves_frees_its_slot(every_task: Path, whole: bool) -> None:
    async with serving(every_task, **ONE_SLOT) as running, client_of(running) as client:
        if whole:
            assert running.http_port is not None
            body = {"model": DECODER, "messages": ASK, "stream": False, "options": LONG}
            async with connect(running.http_port) as connection:
                await connection.send(post("/api/chat", json.dumps(body).encode()))
                while await can_generate(client):
                    pass
        else:
            parts = await client.chat(DECODER, ASK, stream=True, options=LONG)
            async for part in parts:
                assert not part.done
                assert not await can_generate(client)
                break
            await parts.aclose()
        await wait_for(running, "CANCELLED")
        while not await can_generate(client):  # the lane ends its step first
            pass


async def is_open(port: int) -> bool:
    """Whether the port accepts connections."""
    try:
        async with connect(port):
            return True
    except ConnectionError:
        return False


async def test_an_error_within_a_stream_is_its_last_line(every_task: Path) -> None:
    """The client does not read until the server drains, so the stream has not ended before."""
    body = {
        "model": DECODER,
        "messages": ASK,
        "options": LONG,
        "logprobs": True,
        "top_logprobs": 98,
    }
    server = serving(every_task, **ONE_SLOT, grace_seconds=0.0)
    port = (await server.__aenter__()).http_port
    assert port is not None
    async with connect(port, receive_bytes=4096) as connection:
        await connection.send(post("/api/chat", json.dumps(body).encode()))
        assert await connection.status() == 200
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        closing = asyncio.create_task(server.__aexit__(None, None, None))
        while await is_open(port):
            pass
        connection.writer.transport.resume_reading()  # type: ignore[attr-defined]
        rest = await connection.closed()
    await closing
    lines = [line for line in rest.splitlines() if line.startswith(b"{")]
    assert json.loads(lines[-1]) == {"error": "the server is shutting down"}
    assert json.loads(lines[-2])["done"] is False
    assert rest.endswith(lines[-1] + b"\n\r\n0\r\n\r\n")
