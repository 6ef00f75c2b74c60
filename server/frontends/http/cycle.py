"""One request with its response: uvicorn's, where RFC 9110 and RFC 9112 ask for more."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Cycle(RequestResponseCycle):
    """Closes the connection after a response if the client still waits for ``100 Continue``.

    It would not send the body, and what it sends next could pass for the body (RFC 9110, 10.1.1).

    A response without a length ends with the connection for HTTP/1.0, which has no chunks (RFC
    9112, 6.1 and 6.3).

    The head is sent together with the first part of the body. If the server dies, a gateway has
    the whole of a short response, or nothing of it and can send the request to another server.
    """

    transport: "ResponseTransport"  # type: ignore[assignment]

    _ends_with_connection = False

    async def send(self, message: Any) -> None:
        if not self.response_started:
            if self.scope["method"] != "HEAD":
                self.transport.hold_next_write()
            self.keep_alive &= not self.waiting_for_100_continue
            if self.scope["http_version"] != "1.1" and not _has_length(message):
                self.chunked_encoding = False
                self._ends_with_connection = True
        elif self._ends_with_connection:
            # uvicorn compares it with the parts that were sent.
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


def _has_length(message: Any) -> bool:
    return any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))


class ResponseTransport:
    """A transport as a response needs it.

    Args:
        transport: the connection's.
        close: closes it so that the client can read the response.
    """

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.is_closing = transport.is_closing
        self.close = close
        self._write = transport.write
        self._is_next_held = False
        self._held = b""

    def hold_next_write(self) -> None:
        """Sends what is written next only with what is written after it."""
        self._is_next_held = True

    def write(self, data: bytes) -> None:
        """Sends ``data``, after what was held."""
        if self._is_next_held:
            self._is_next_held, self._held = False, data
        elif self._held:
            held, self._held = self._held, b""
            self._write(held + data)
        else:
            self._write(data)
