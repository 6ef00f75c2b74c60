"""What the kernel is given at once: a gateway repeats requests whose response has not begun."""

import socket

import pytest

from tests.frontends.http.listening import Start
from tests.frontends.http.raw import connect, post


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What connections give to the kernel to send, from now on."""
    sends: list[bytes] = []
    send = socket.socket.send

    def recording(self: socket.socket, data: bytes) -> int:
        if self.family != socket.AF_UNIX:  # by which threads wake an event loop
            sends.append(bytes(data))
        return send(self, data)

    monkeypatch.setattr(socket.socket, "send", recording)
    return sends


@pytest.mark.parametrize("path", ["/echo", "/none"])
async def test_a_response_is_sent_at_once(start: Start, sent: list[bytes], path: str) -> None:
    async with start() as port, connect(port) as connection:
        await connection.send(post(path, b'{"text": "a"}', "connection: close"))
        response = await connection.closed()
    assert response.startswith(b"HTTP/1.1 ")
    assert len(response.partition(b"\r\n\r\n")[2]) > 0
    assert sent[1:] == [response]


async def test_the_head_of_a_stream_is_sent_with_its_first_item(
    start: Start, sent: list[bytes]
) -> None:
    async with start() as port, connect(port) as connection:
        await connection.send(post("/stream", b"{}", "connection: close"))
        await connection.closed()
    first, second, _ = sent[1:]
    assert first.startswith(b"HTTP/1.1 200")
    assert first.endswith(b"one, \r\n")
    assert second.endswith(b"two\r\n")


async def test_a_head_without_a_body_is_sent(start: Start) -> None:
    async with start() as port, connect(port) as connection:
        await connection.send(b"HEAD /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        head, end, body = (await connection.closed()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405")
    assert (end, body) == (b"\r\n\r\n", b"")
