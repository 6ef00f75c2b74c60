"""Requests that ask for another protocol are served as HTTP/1.1, with their bodies."""

import re

import pytest

from tests.frontends.http.listening import Start
from tests.frontends.http.raw import connect, post, settle

# As curl 7.88 with --http2 and Java 17's HttpClient send them.
CURL = (
    b"POST /echo HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n"
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n%s"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\n"
)
JAVA = (
    b"POST /echo HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\n%sHost: 127.0.0.1:8080\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA\r\nUpgrade: h2c\r\n"
    b"User-Agent: Java-http-client/17.0.15\r\n"
    b"content-type: application/json\r\n\r\n"
)
WEBSOCKET = (
    b"POST /echo HTTP/1.1\r\nhost: x\r\nconnection: keep-alive\r\nconnection: upgrade\r\n"
    b"upgrade: websocket\r\nsec-websocket-version: 13\r\n%s\r\n"
)
BODY = b'{"text":"first"}'
# By content length and by chunks: the header, and the body as it is sent.
FRAMES = {
    "length": (b"content-length: %d\r\n" % len(BODY), BODY),
    "chunks": (b"transfer-encoding: chunked\r\n", b"10\r\n" + BODY + b"\r\n0\r\n\r\n"),
}
LAST = post("/echo", b'{"text":"second"}', "connection: close")


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
@pytest.mark.parametrize("head", [CURL, JAVA, WEBSOCKET], ids=["curl", "java", "websocket"])
async def test_upgrade_is_ignored(start: Start, head: bytes, frame: tuple[bytes, bytes]) -> None:
    header, body = frame
    whole = head % header
    for packets in (
        (whole + body + LAST,),
        (whole, body, LAST),
        (whole[:90], whole[90:] + body[:5], body[5:] + LAST),
        (whole + body + whole + body, LAST),
    ):
        async with start() as port, connect(port) as connection:
            for packet in packets:
                await connection.send(packet)
                await settle(port)
            answer = await connection.closed()
        num_requests = b"".join(packets).count(b"POST")
        assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 200 OK") == num_requests
        assert answer.count(b'"first"') == num_requests - 1
        assert answer.rindex(b'"first"') < answer.index(b'"second"')


async def test_a_body_is_no_request(start: Start) -> None:
    """Else a client of a proxy could put answers before those of others."""
    body = post("/echo", b'{"text":"smuggled"}')
    hidden = CURL % b"content-length: %d\r\n" % len(body) + body
    async with start() as port, connect(port) as connection:
        await connection.send(hidden + LAST)
        answer = await connection.closed()
    assert b"smuggled" not in answer
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"400", b"200"]


async def test_requests_without_bodies_may_ask_for_upgrades(start: Start) -> None:
    get = b"GET /echo HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    async with start() as port, connect(port) as connection:
        await connection.send(get * 4000 + LAST)  # as many as fit into one read
        answer = await connection.closed()
    assert (answer.count(b"HTTP/1.1 405"), answer.count(b'"second"')) == (4000, 1)


async def test_connect_is_refused(start: Start) -> None:
    async with start() as port, connect(port) as connection:
        await connection.send(b"CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\n\r\n" + LAST)
        assert await connection.status() == 400
        assert b"second" not in await connection.closed()
