"""Requests that are answered before their body has arrived: clients get the answer."""

import asyncio
from pathlib import Path

import pytest

from tests.frontends.http.listening import Start
from tests.frontends.http.raw import connect, settle

NUM_BYTES = 8 << 20
PART = b" " * (1 << 16)
LENGTH = f"content-length: {NUM_BYTES}"
EXPECT = "expect: 100-continue"
CLOSE = "connection: close"


def head(*headers: str, path: str = "/echo") -> bytes:
    return "\r\n".join((f"POST {path} HTTP/1.1", "host: x", *headers, "", "")).encode()


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text("alice:first-token\n")
    return path


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (head(LENGTH, CLOSE, "authorization: Bearer first-token"), b"413"),
        (head(LENGTH, CLOSE), b"401"),
        (head(LENGTH, CLOSE, path="/nothing"), b"401"),
        (head("transfer-encoding: chunked") + b"z", b"400"),
    ],
    ids=["too large", "no token", "no route", "no chunk"],
)
async def test_answers_reach_clients_that_still_send(
    start: Start, tokens: Path, first: bytes, status: bytes
) -> None:
    async with start(tokens=tokens, max_body_bytes=65_536) as port, connect(port) as connection:
        await connection.send(first + PART)
        await settle(port)
        for _ in range(NUM_BYTES // len(PART) - 1):
            await connection.send(PART)
        answer = await connection.closed()
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert b"connection: close" in answer


@pytest.mark.parametrize("limits", [{"linger_seconds": 0.05}, {"max_linger_bytes": 1 << 16}])
async def test_clients_that_send_without_end_are_disconnected(
    start: Start, limits: dict[str, float]
) -> None:
    async with start(max_body_bytes=65_536, **limits) as port, connect(port) as connection:
        await connection.send(head(LENGTH, CLOSE))
        assert await connection.status() == 413

        async def send() -> None:
            while True:
                await connection.send(PART[: 1 << 8])
                await asyncio.sleep(0)

        with pytest.raises(ConnectionError):
            await send()


@pytest.mark.parametrize(
    ("headers", "status"),
    [((LENGTH, "authorization: Bearer first-token"), 413), ((LENGTH,), 401)],
    ids=["too large", "no token"],
)
async def test_refused_bodies_are_not_asked_for(
    start: Start, tokens: Path, headers: tuple[str, ...], status: int
) -> None:
    """The connection closes: the client may send the body or not."""
    async with start(tokens=tokens, max_body_bytes=65_536) as port, connect(port) as connection:
        await connection.send(head(EXPECT, *headers))
        assert await connection.status() == status
        assert b"connection: close" in await connection.closed()


BODIES = (("content-length: 2", b"{}"), ("transfer-encoding: chunked", b"2\r\n{}\r\n0\r\n\r\n"))


@pytest.mark.parametrize(("header", "body"), BODIES, ids=["length", "chunked"])
async def test_accepted_bodies_are_asked_for(start: Start, header: str, body: bytes) -> None:
    async with start() as port, connect(port) as connection:
        await connection.send(head(EXPECT, header))
        assert await connection.status() == 100
        await connection.send(body)
        await connection.reader.readline()
        assert await connection.status() == 200
        answer = await connection.reader.readuntil(b"\r\n\r\n")
        assert b"connection: close" not in answer


@pytest.mark.parametrize(("header", "body"), BODIES, ids=["length", "chunked"])
async def test_clients_need_not_wait_to_be_asked(start: Start, header: str, body: bytes) -> None:
    """They may send the body at once, and the next request after it (RFC 9110, 10.1.1)."""
    async with start() as port, connect(port) as connection:
        await connection.send(head(EXPECT, header) + body + head(header, CLOSE) + body)
        answers = await connection.closed()
    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert answers.count(b"HTTP/1.1") - answers.count(b"HTTP/1.1 100") == 2
    assert answers.count(b'{"text":""}') == 2
