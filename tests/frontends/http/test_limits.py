"""Limits of a connection: size and time of heads and bodies, idle connections, smuggling."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec
import pytest
from starlette.responses import Response

from server.config import ServerConfig
from server.frontends.http.access import Access
from server.frontends.http.application import Application
from server.frontends.http.body import BodyBudget, BodyLimits
from server.frontends.http.endpoint import Api, Call, Context, json_response
from server.frontends.http.listener import Listener, bound_socket
from server.frontends.http.probes import error_response
from server.frontends.http.settings import HttpSettings
from server.service.caller import Caller
from tests.faults.record import record
from tests.frontends.http.raw import connect, post

Start = Callable[..., AbstractAsyncContextManager[int]]


class Body(msgspec.Struct, forbid_unknown_fields=True):
    text: str = ""
    numbers: list[int] = []


class Untracked:
    """In place of the service: these requests only need it for decoding large bodies."""

    @asynccontextmanager
    async def track_call(self, *_: str) -> AsyncIterator[None]:
        yield

    async def build(self, _: int, function: Callable[[], Any], __: Caller) -> Any:
        return await asyncio.to_thread(function)


@pytest.fixture
def start(tmp_path: Any) -> Start:
    """Starts a listener with one route, ``/echo``; yields its port."""

    @asynccontextmanager
    async def listening(**limits: Any) -> AsyncIterator[int]:
        settings = HttpSettings(**limits)
        service: Any = Untracked()
        access = Access(ServerConfig(bundles=tmp_path))
        context = Context(service, settings, access, BodyBudget(settings.max_buffered_bytes))

        async def echo(call: Call[Body]) -> Response:
            return json_response({"text": call.body.text})

        api = Api(context=context, error=error_response)
        routes = [
            api.post("/echo", Body, echo),
            api.post("/large", Body, echo, limits=BodyLimits(200_000, seconds=60.0)),
            api.post("/slow", Body, echo, limits=BodyLimits(200_000, seconds=0.05)),
        ]
        app = Application(routes, access)
        bound = bound_socket("127.0.0.1:0")
        listener = Listener(bound, app, settings, None)
        await listener.start()
        yield bound.getsockname()[1]
        await listener.stop(grace_seconds=1.0)

    return listening


HOSTILE: tuple[tuple[bytes, int], ...] = (
    (post("/nothing", b"{}"), 404),
    (b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n", 405),
    (post("/echo", b'{"text":1}'), 400),
    (post("/echo", b"[" * 30_000), 400),
    (post("/echo", b'{"numbers":' + b"[" * 30_000), 400),
    (post("/echo", b'{"text":"\xff"}'), 400),
    (post("/echo", b'{"text":"\\ud800"}'), 400),
    (post("/echo", b"x" * 70_000), 413),
    (
        b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        + b"11170\r\n"
        + b"x" * 70_000
        + b"\r\n0\r\n\r\n",
        413,
    ),
    # Smuggling: two ways to find the end of a request.
    (post("/echo", b"0\r\n\r\n", "transfer-encoding: chunked"), 400),
    (post("/echo", b"{}", "content-length: 3"), 400),
    (post("/echo", b"{}", "transfer-encoding : chunked"), 400),
    (post("/echo", b"{}", "transfer-encoding: chunked, identity"), 400),
    (b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", 400),
    (b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
    (b"GET /echo HTTP/1.1\r\nhost: x\r\nx: a\r\n b\x00\r\n\r\n", 400),
    # Heads over the limit, with and without an end.
    (post("/echo", b"{}", "x: " + "a" * 40_000), 431),
    (post("/echo", b"{}", *(f"x{n}: a" for n in range(6000))), 431),
    (b"GET /" + b"a" * 40_000, 431),
    (b"GET / HTTP/1.1\r\nx: " + b"a" * 40_000, 431),
    # Not HTTP: TLS, HTTP/2 with prior knowledge.
    (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
)


@pytest.fixture(scope="module")
def answered() -> Iterator[list[int]]:
    """The statuses of the hostile requests that were answered as they must be."""
    statuses: list[int] = []
    yield statuses
    if len(statuses) == len(HOSTILE):
        record(
            14,
            "hostile HTTP: smuggling, oversized heads and bodies, deep JSON, other protocols",
            "each is refused with its status, and the server answers the next request",
            requests=len(HOSTILE),
            refused=len(statuses),
        )


@pytest.mark.parametrize(
    ("data", "status"),
    [(post("/echo", b'{"text":"a"}'), 200), *HOSTILE],
    ids=lambda value: None if isinstance(value, bytes) else value,
)
async def test_answers_hostile_requests(
    start: Start, answered: list[int], data: bytes, status: int
) -> None:
    async with start(max_body_bytes=65_536, max_head_bytes=32_768) as port:
        async with connect(port) as connection:
            await connection.send(data)
            assert await connection.status() == status
        async with connect(port) as connection:  # and the server still answers
            await connection.send(post("/echo", b'{"text":"a"}'))
            assert await connection.status() == 200
    if status >= 400:
        answered.append(status)


@pytest.mark.parametrize(
    ("data", "limits", "status"),
    [
        (b"", {"keep_alive_seconds": 0.05}, 0),
        (b"P", {"head_seconds": 0.05}, 408),
        (b"POST /echo HTTP/1.1\r\nhost: x\r\n", {"head_seconds": 0.05}, 408),
        (post("/echo", b"{}")[:-1], {"body_seconds": 0.05}, 0),
        (post("/echo", b"{}") + b"P", {"head_seconds": 0.05}, 200),
    ],
    ids=["nothing", "a byte", "half a head", "half a body", "a byte of the second"],
)
async def test_slow_clients_are_disconnected(
    start: Start, data: bytes, limits: dict[str, float], status: int
) -> None:
    async with start(**limits) as port, connect(port) as connection:
        await connection.send(data)
        assert await connection.status() == status
        await connection.closed()


async def test_a_route_may_have_other_limits(start: Start) -> None:
    large = b'{"text":"' + b"a" * 90_000 + b'"}'
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n"
    async with start(max_body_bytes=65_536, body_seconds=0.05) as port:
        for path, body, status in (
            ("/echo", large, 413),
            ("/large", large, 200),
            ("/large", b"x" * 200_001, 413),
        ):
            async with connect(port) as connection:
                await connection.send(post(path, body))
                assert await connection.status() == status
        async with connect(port) as patient, connect(port) as other, connect(port) as third:
            await patient.send(head % b"/large")
            await other.send(head % b"/echo")
            await other.closed()
            await third.send(head % b"/slow")
            await third.closed()
            await patient.send(b'{"text":1}')
            assert await patient.status() == 400
    async with start() as port, connect(port) as connection:
        await connection.send(head % b"/slow")
        await connection.closed()


async def test_a_trickle_does_not_extend_the_deadline(start: Start) -> None:
    limits = {"head_seconds": 0.1, "max_head_bytes": 1 << 40}
    async with start(**limits) as port, connect(port) as connection:
        await connection.send(b"GET / HTTP/1.1\r\nx: ")

        async def trickle() -> None:
            while True:
                await connection.send(b"a")
                await asyncio.sleep(0)

        with pytest.raises(ConnectionError):
            await trickle()


async def test_the_longest_idle_connection_makes_room(start: Start) -> None:
    async with start(max_connections=3) as port, connect(port) as first, connect(port) as second:
        for connection in (first, second):
            await connection.send(post("/echo", b"{}"))
            assert await connection.status() == 200
        async with connect(port) as third, connect(port) as fourth:
            assert b"200" not in await first.closed()  # only the rest of its first answer
            for connection in (third, fourth):
                await connection.send(post("/echo", b"{}"))
                assert await connection.status() == 200


async def test_bodies_share_a_budget(start: Start) -> None:
    async with start(max_buffered_bytes=100_000) as port:
        head = b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 90000\r\n\r\n"
        async with connect(port) as holder, connect(port) as other:
            await holder.send(head + b" " * 80_000)
            await other.send(head + b" " * 80_000)
            assert await other.status() == 429
            await holder.send(b" " * 9_998 + b"{}")
            assert await holder.status() == 200


async def test_pipelined_requests_are_answered_in_order(start: Start) -> None:
    async with start() as port, connect(port) as connection:
        bodies = [f'{{"text":"{number}"}}'.encode() for number in range(20)]
        requests = [post("/echo", body) for body in bodies]
        requests[-1] = post("/echo", bodies[-1], "connection: close")
        await connection.send(b"".join(requests))
        answer = await connection.closed()
        places = [answer.index(body) for body in bodies]
        assert places == sorted(places)
