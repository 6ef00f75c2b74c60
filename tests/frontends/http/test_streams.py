"""Streams whose clients leave, half-close or do not read: their slots are freed."""

import json
import re
from pathlib import Path

import pytest

from server.app import RunningServer
from tests.frontends.conftest import DECODER
from tests.frontends.http.ended_streams import ONE_SLOT, sent_at_shutdown, wait_for
from tests.frontends.http.raw import connect, post
from tests.server.in_process_server import serving

MANY = {**ONE_SLOT, "max_queue": 100}
PROMPTS = ["7,"] * 64
"""They take turns in one slot."""


def request(**fields: object) -> bytes:
    """A stream that runs for long, with large events."""
    body = {
        "model": DECODER,
        "prompt": "7,",
        "stream": True,
        "ignore_eos": True,
        "max_tokens": 255,
        **fields,
    }
    return post("/v1/completions", json.dumps(body).encode())


async def can_generate(running: RunningServer) -> bool:
    """Whether the only slot is free."""
    assert running.http_port is not None
    async with connect(running.http_port) as connection:
        await connection.send(request(stream=False, max_tokens=1))
        return await connection.status() == 200


@pytest.mark.parametrize("leave", ["close", "half-close", "reset"])
async def test_a_client_that_leaves_frees_its_slot(every_task: Path, leave: str) -> None:
    async with serving(every_task, **ONE_SLOT) as running:
        assert running.http_port is not None
        async with connect(running.http_port) as connection:
            await connection.send(request())
            assert await connection.status() == 200
            assert not await can_generate(running)
            if leave == "half-close":
                connection.writer.write_eof()
            elif leave == "close":
                connection.writer.close()
            else:
                connection.writer.transport.abort()
            await wait_for(running, "/v1/completions", "CANCELLED")
            while not await can_generate(running):  # the lane ends its step first
                pass


async def test_a_client_that_does_not_read_frees_its_slot(every_task: Path) -> None:
    async with serving(every_task, **MANY, stall_seconds=0.2) as running:
        assert running.http_port is not None
        async with connect(running.http_port, receive_bytes=4096) as connection:
            await connection.send(request(prompt=PROMPTS, logprobs=98))
            connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await wait_for(running, "/v1/completions", "RESOURCE_EXHAUSTED")
            while not await can_generate(running):
                pass


async def test_responses_have_events_of_their_own_for_errors(every_task: Path) -> None:
    """Events without a type and a number are ignored by clients such as Vercel's AI SDK."""
    fields = {
        "input": "7,",
        "max_output_tokens": 255,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 98,
        "stream": True,
        "ignore_eos": True,
        "model": DECODER,
    }
    request = post("/v1/responses", json.dumps(fields).encode())
    rest = await sent_at_shutdown(every_task, request, **MANY)
    events = re.findall(rb"event: (.*)\ndata: (.*)\n", rest)
    name, data = events[-1][0], json.loads(events[-1][1])
    assert (name, data["type"]) == (b"error", "error")
    assert data["sequence_number"] > json.loads(events[-2][1])["sequence_number"]
    assert data["error"]["message"] == "the server is shutting down"
    assert data["error"]["type"] == "server_error"


async def test_draining_ends_streams_with_an_error(every_task: Path) -> None:
    async with serving(every_task, **MANY, grace_seconds=0.0) as running:
        assert running.http_port is not None
        connection = connect(running.http_port)
        opened = await connection.__aenter__()
        await opened.send(request(prompt=PROMPTS))
        assert await opened.status() == 200
    rest = await opened.closed()
    await connection.__aexit__(None, None, None)
    assert rest.endswith(b"\r\n0\r\n\r\n")
    assert b"the server is shutting down" in rest
