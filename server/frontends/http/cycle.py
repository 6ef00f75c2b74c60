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
    """

    _ends_with_connection = False

    async def send(self, message: Any) -> None:
        if not self.response_started:
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
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close
