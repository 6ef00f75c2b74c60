"""Streams of Ollama's API that end early: clients that leave, and a server that stops."""

import json
from contextlib import suppress
from pathlib import Path

import ollama
import pytest

from server.app import RunningServer
from tests.frontends.conftest import DECODER
from tests.frontends.http.ended_streams import ONE_SLOT, sent_at_shutdown, wait_for
from tests.frontends.http.raw import connect, post
from tests.server.in_process_server import serving

LONG = {"ignore_eos": True, "num_predict": 250}
ASK = [{"role": "user", "content": "7,"}]


def client_of(running: RunningServer) -> ollama.AsyncClient:
    return ollama.AsyncClient(host=f"http://127.0.0.1:{running.http_port}")


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
        await wait_for(running, "/api/chat", "CANCELLED")
        while not await can_generate(client):  # the lane ends its step first
            pass


async def test_an_error_within_a_stream_is_its_last_line(every_task: Path) -> None:
    body = {
        "model": DECODER,
        "messages": ASK,
        "options": LONG,
        "logprobs": True,
        "top_logprobs": 98,
    }
    request = post("/api/chat", json.dumps(body).encode())
    rest = await sent_at_shutdown(every_task, request)
    lines = [line for line in rest.splitlines() if line.startswith(b"{")]
    assert json.loads(lines[-1]) == {"error": "the server is shutting down"}
    assert json.loads(lines[-2])["done"] is False
    assert rest.endswith(lines[-1] + b"\n\r\n0\r\n\r\n")
