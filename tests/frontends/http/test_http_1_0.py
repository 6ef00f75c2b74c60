"""Clients of HTTP/1.0, which has no chunks and needs no host."""

import pytest

from tests.frontends.http.listening import Start
from tests.frontends.http.raw import connect


def request(path: str, *headers: str) -> bytes:
    lines = (f"POST {path} HTTP/1.0", "content-length: 2", *headers, "", "")
    return "\r\n".join(lines).encode() + b"{}"


@pytest.mark.parametrize("headers", [(), ("connection: keep-alive",)])
async def test_a_stream_ends_with_the_connection(start: Start, headers: tuple[str, ...]) -> None:
    async with start() as port, connect(port) as connection:
        await connection.send(request("/stream", *headers))
        head, _, body = (await connection.closed()).partition(b"\r\n\r\n")
    assert body == b"one, two"
    assert head.startswith(b"HTTP/1.1 200")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head


async def test_other_responses_have_a_length(start: Start) -> None:
    async with start() as port, connect(port) as connection:
        await connection.send(request("/echo", "expect: 100-continue"))
        head, _, body = (await connection.closed()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"content-length: %d" % len(body) in head
