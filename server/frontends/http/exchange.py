"""Sends the response to one request: whole, streamed, or an error."""

import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope, Send

from server.errors import InternalError, ServeError
from server.frontends.http.event_stream import EventStream
from server.frontends.http.failures import Failure, failure_of

_MAX_REQUEST_ID = 128
ID_HEADER = "x-request-id"
"""The header with the id of a request, in requests and responses."""


@dataclass(frozen=True, slots=True)
class Errors:
    """How a protocol sends errors: as a response with a status, or as an item of a stream."""

    response: Callable[[Failure], Response]
    status_of: Callable[[Failure], int]

    def event_of(self, failure: Failure) -> bytes:
        """The stream item that reports ``failure``: its data is the body of the response."""
        return b"data: " + bytes(self.response(failure).body) + b"\n\n"


class Exchange:
    """Sends the response of one request, or an error instead.

    Args:
        scope: the request's ASGI scope.
        send: sends the parts of the response.
        request_id: the id to return in ``id_headers``.
        errors: how the protocol sends errors.
        id_headers: the names of the headers.

    Attributes:
        names: returns the protocol's names of the service's fields; set when the body is decoded.
    """

    def __init__(
        self,
        scope: Scope,
        send: Send,
        request_id: str,
        errors: Errors,
        id_headers: Sequence[str] = (ID_HEADER,),
    ) -> None:
        self.names: Callable[[], Mapping[str, str]] = dict
        self._errors = errors
        self._scope = scope
        self._send = send
        self._id_headers = dict.fromkeys(id_headers, request_id)
        self._connection = scope.get("triune.connection")
        self._has_started = False
        self._error_event: Callable[[Failure], bytes] = errors.event_of

    @property
    def is_gone(self) -> bool:
        """Whether the connection is lost."""
        return self._connection is not None and self._connection.transport.is_closing()

    @property
    def is_stalled(self) -> bool:
        """Whether the connection was reset because the client did not read."""
        return self._connection is not None and self._connection.stalled

    async def answer(self, response: Response | EventStream) -> None:
        if isinstance(response, EventStream):
            await self._stream(response)
        else:
            await self._respond(response)

    async def fail(self, error: ServeError) -> None:
        if self.is_gone:
            return
        failure = failure_of(error, self.names())
        if not self._has_started:
            response = self._errors.response(failure)
            response.status_code = self._errors.status_of(failure)
            response.headers.update(failure.headers)
            await self._respond(response)
            return
        await self._send_body(self._error_event(failure), more=False)

    async def _respond(self, response: Response) -> None:
        self._has_started = True
        response.headers.update(self._id_headers)
        # The response must not be cancelled when uvicorn closes the connection after it.
        if self._connection is not None:
            self._connection.on_lost = None
        await response(self._scope, _receive_nothing, self._send)

    async def _stream(self, stream: EventStream) -> None:
        if stream.error_event is not None:
            self._error_event = stream.error_event
        async with aclosing(stream.items) as items:
            first = await anext(items, None)
            await self._send_head(stream)
            if first is not None:
                await self._send_body(first)
                await self._send_rest(items)
        await self._send_body(b"", more=False)

    async def _send_rest(self, items: AsyncGenerator[bytes, None]) -> None:
        async for item in items:
            await self._send_body(item)

    async def _send_head(self, stream: EventStream) -> None:
        self._has_started = True
        given = {
            "content-type": stream.media_type,
            "cache-control": "no-cache",
            "x-accel-buffering": "no",  # nginx would buffer events
            **self._id_headers,
            **stream.headers,
        }
        headers = [(name.encode("latin-1"), text.encode("latin-1")) for name, text in given.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _send_body(self, data: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


async def _receive_nothing() -> Any:
    raise InternalError("the body was read already")


def request_id_of(headers: Headers) -> str:
    """The client's ``x-request-id`` if it can be repeated, else a new one."""
    given = headers.get(ID_HEADER, "")
    if 0 < len(given) <= _MAX_REQUEST_ID and given.isascii() and given.isprintable():
        return given
    return uuid.uuid4().hex
