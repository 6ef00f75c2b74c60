"""What arrives while a response is made neither ends that response nor is answered before it."""

import asyncio
import re

import pytest

from tests.frontends.http.listening import Start
from tests.frontends.http.raw import connect, post, settle

FIRST = post("/held", b'{"text":"first"}')
SECOND = post("/echo", b'{"text":"second"}')
# A deadline of no time passes before the server reads anything else.
AT_ONCE = 0.0


async def test_a_line_end_after_a_body_is_ignored(start: Start) -> None:
    release = asyncio.Event()
    async with start(release=release, head_seconds=AT_ONCE) as port, connect(port) as connection:
        await connection.send(FIRST + b"\r\n")
        await settle(port)
        await connection.send(b"\r\n")
        await settle(port)
        release.set()
        assert await connection.status() == 200
        await settle(port)
        await connection.send(b"\r\n" + SECOND)
        assert b'"second"' in await connection.reader.readuntil(b'"second"')


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        (b"P", b"408"),
        (SECOND[:-1], b"408"),
        (b"what is this\r\n\r\n", b"400"),
        (post("/echo", b"{}", "x: " + "a" * 40_000), b"431"),
        (b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nz", b"400"),
    ],
    ids=["a byte", "half a body", "no request", "a large head", "no chunk"],
)
async def test_refusals_wait_for_their_turn(start: Start, rest: bytes, status: bytes) -> None:
    release = asyncio.Event()
    limits = {"head_seconds": AT_ONCE, "body_seconds": AT_ONCE}
    async with start(release=release, **limits) as port, connect(port) as connection:
        await connection.send(FIRST + post("/held", b"{}") + rest)
        await settle(port)
        release.set()
        answer = await connection.closed()
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"200", status]
    assert b'"first"' in answer


async def test_a_request_with_half_a_body_is_refused_at_once(start: Start) -> None:
    async with start() as port, connect(port) as connection:
        head = b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        await connection.send(head + b"1\r\n{\r\nz\r\n")
        assert re.findall(rb"HTTP/1.1 (\d+)", await connection.closed()) == [b"400"]
