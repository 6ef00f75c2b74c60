"""A listener with a few routes, in the test's event loop: no models, no service."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from starlette.responses import Response

from server.config import ServerConfig
from server.frontends.http.access import Access
from server.frontends.http.application import Application
from server.frontends.http.body import BodyBudget, BodyLimits
from server.frontends.http.endpoint import Api, Call, Context, json_response
from server.frontends.http.event_stream import EventStream
from server.frontends.http.listener import Listener, bound_socket
from server.frontends.http.probes import error_response
from server.frontends.http.settings import HttpSettings
from server.service.caller import Caller

Start = Callable[..., AbstractAsyncContextManager[int]]
NUM_ITEMS, ITEM_BYTES = 128, 1 << 16
"""The stream ``/items``."""


def item(number: int) -> bytes:
    """One item of the stream ``/items``."""
    return str(number).encode().rjust(ITEM_BYTES, b" ")


class Body(msgspec.Struct, forbid_unknown_fields=True):
    text: str = ""
    numbers: list[int] = []


class Untracked:
    """In place of the service: these requests only need it for decoding large bodies."""

    @asynccontextmanager
    async def track_call(self, *_: str) -> AsyncIterator[None]:
        yield

    def __init__(self, entered: asyncio.Event | None, decode: asyncio.Event | None) -> None:
        self._entered, self._decode = entered, decode

    async def build(self, _: int, function: Callable[[], Any], __: Caller) -> Any:
        if self._entered is not None and self._decode is not None:
            self._entered.set()
            await self._decode.wait()
        return await asyncio.to_thread(function)


@asynccontextmanager
async def listening(
    folder: Path,
    tokens: Path | None = None,
    release: asyncio.Event | None = None,
    entered: asyncio.Event | None = None,
    decode: asyncio.Event | None = None,
    sent: list[int] | None = None,
    **limits: Any,
) -> AsyncIterator[int]:
    """Yields the port of a listener with the route ``/echo`` and others.

    Args:
        folder: of bundles, which are not read.
        tokens: a token file.
        release: ``/held`` answers when it is set.
        entered: set when a large body is to be decoded.
        decode: large bodies are decoded when it is set.
        sent: gets the numbers of the items of ``/items`` that were given to the connection.
        limits: of ``HttpSettings``.
    """
    settings = HttpSettings(**limits)
    service: Any = Untracked(entered, decode)
    access = Access(ServerConfig(bundles=folder, tokens=tokens))
    context = Context(service, settings, access, BodyBudget(settings.max_buffered_bytes))

    async def echo(call: Call[Body]) -> Response:
        return json_response({"text": call.body.text})

    async def held(call: Call[Body]) -> Response:
        assert release is not None
        await release.wait()
        return await echo(call)

    async def stream(_: Call[Body]) -> EventStream:
        async def items() -> AsyncGenerator[bytes, None]:
            yield b"one, "
            yield b"two"

        return EventStream(items())

    async def items(_: Call[Body]) -> EventStream:
        async def numbered() -> AsyncGenerator[bytes, None]:
            for number in range(NUM_ITEMS):
                yield item(number)
                if sent is not None:
                    sent.append(number)

        return EventStream(numbered())

    api = Api(context=context, error=error_response)
    routes = [
        api.post("/echo", Body, echo),
        api.post("/held", Body, held),
        api.post("/stream", Body, stream),
        api.post("/items", Body, items),
        api.post("/large", Body, echo, limits=BodyLimits(200_000, seconds=60.0)),
        api.post("/slow", Body, echo, limits=BodyLimits(200_000, seconds=0.05)),
    ]
    bound = bound_socket("127.0.0.1:0")
    listener = Listener(bound, Application(routes, access), settings, None)
    await listener.start()
    yield bound.getsockname()[1]
    await listener.stop(grace_seconds=1.0)
