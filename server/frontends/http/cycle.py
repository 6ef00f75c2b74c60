"""One request with its response: uvicorn's, where RFC 9110 asks for more."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Cycle(RequestResponseCycle):
    """Closes the connection after a response if the client still waits for ``100 Continue``.

    It would not send the body, and what it sends next could pass for the body (RFC 9110, 10.1.1).
    """

    async def send(self, message: Any) -> None:
        if not self.response_started and self.waiting_for_100_continue:
            self.keep_alive = False
        await super().send(message)


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
