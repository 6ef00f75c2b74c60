"""Clients that read a stream slowly: they get all of it, and the server buffers little."""

import asyncio

import pytest

from server.frontends.http.connection import Connection
from tests.frontends.http.listening import ITEM_BYTES, NUM_ITEMS, Start, item
from tests.frontends.http.raw import connect, post, settle

# Items that the server and both kernels may hold: 1 MiB.
MAX_HELD = 16
CHUNK = b"%x\r\n" % ITEM_BYTES


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when a connection has too many unsent bytes."""
    event, pause = asyncio.Event(), Connection.pause_writing

    def pause_writing(self: Connection) -> None:
        pause(self)
        event.set()

    monkeypatch.setattr(Connection, "pause_writing", pause_writing)
    return event


async def test_a_stream_waits_for_its_reader(start: Start, paused: asyncio.Event) -> None:
    sent: list[int] = []
    async with start(sent=sent) as port, connect(port, receive_bytes=4096) as connection:
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await connection.send(post("/items", b"{}", "connection: close"))
        await paused.wait()
        await settle(port)
        assert len(sent) <= MAX_HELD
        connection.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await connection.status() == 200
        await connection.reader.readuntil(b"\r\n\r\n")
        for number in range(NUM_ITEMS):
            chunk = CHUNK + item(number) + b"\r\n"
            assert await connection.reader.readexactly(len(chunk)) == chunk
            assert len(sent) <= number + MAX_HELD
        assert await connection.closed() == b"0\r\n\r\n"
    assert len(sent) == NUM_ITEMS
