"""An HTTP/1.1 connection: uvicorn's protocol with limits of size and time."""

import asyncio
import ssl
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from server.frontends.http.protocol import Protocol
from server.frontends.http.settings import HttpSettings

_BAD_REQUEST = (400, "Bad Request")
_HEAD_TOO_LARGE = (431, "Request Header Fields Too Large")
_TOO_SLOW = (408, "Request Timeout")


class _Phase(Enum):
    """The part of a request that is being received."""

    NOTHING = auto()  # at most line ends, which RFC 9112, 2.2, ignores
    HEAD = auto()
    BODY = auto()
    WASTE = auto()  # which is discarded: the connection closes after the responses


class Connection(Protocol):
    """Limits the size of a request's head, and the time that a client may take.

    uvicorn has no limit for slow requests, for large heads or for clients that do not read. Use
    :func:`connection_type` to set ``settings`` and ``idle``.

    ``settings`` are the limits. ``idle`` holds the server's connections without a request, longest
    idle first. ``on_lost`` is called once if the connection is lost during a request. ``stalled``
    is true if the connection was reset because the client did not read.
    """

    settings: HttpSettings
    idle: "dict[Connection, None]"

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.on_lost: Callable[[], object] | None = None
        self.stalled = False
        self._certificate: str | None = None
        self._running: RequestResponseCycle | None = None
        self._phase = _Phase.NOTHING
        # Received since the last request, or since the last part of the body.
        self._num_head_bytes = 0
        self._num_discarded_bytes = 0
        self._refusal: bytes | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stall_check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._certificate = _common_name(transport.get_extra_info("ssl_object"))
        # A connection that was never used has the same keep-alive timeout as an idle one.
        self.timeout_keep_alive_task = self.loop.call_later(
            self.settings.keep_alive_seconds, self.timeout_keep_alive_handler
        )
        self.idle[self] = None
        if len(self.connections) > self.settings.max_connections:
            oldest = next(iter(self.idle))
            del self.idle[oldest]  # so that the next new connection makes another one leave
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle.pop(self, None)
        self._stop_timers()
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        running = self._running
        super().connection_lost(exc)
        if running is not None and not running.response_complete:
            # uvicorn notifies only the newest of several pipelined requests.
            running.disconnected = True
            running.message_event.set()
        if self.on_lost is not None:
            self.on_lost()
        # These refer to this connection; only a full garbage collection would free such a cycle.
        self.cycle = self._running = self.on_lost = None  # type: ignore[assignment]
        self.scope = {}  # type: ignore[typeddict-item]

    def data_received(self, data: bytes) -> None:
        if self._phase is _Phase.WASTE:
            self._discard(len(data))
            return
        self._num_head_bytes += len(data)
        try:
            self.parse(memoryview(data))
        except httptools.HttpParserError:
            self._refuse(*_BAD_REQUEST)
        if self._num_head_bytes > self.settings.max_head_bytes:
            self._refuse(*_HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._phase = _Phase.HEAD
        self._unset_keepalive_if_required()
        self.idle.pop(self, None)
        if self._running is None:
            self._start_deadline(self.settings.head_seconds)
        self.scope["triune.connection"] = self  # type: ignore[typeddict-unknown-key]
        self.scope["triune.certificate"] = self._certificate  # type: ignore[typeddict-unknown-key]

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is _Phase.HEAD:  # else it is a trailer, which RFC 9110, 6.5, ignores
            super().on_header(name, value)

    def on_request(self) -> None:
        num_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if num_bytes > self.settings.max_head_bytes:
            self._refuse(*_HEAD_TOO_LARGE)
            raise httptools.HttpParserError("the head is too large")
        super().on_request()
        self._phase = _Phase.BODY
        self._num_head_bytes = 0
        self._stop_deadline()
        if self._running is self.cycle:
            self._start_deadline(self.settings.body_seconds)

    def on_chunk_header(self) -> None:
        self._num_head_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._num_head_bytes = 0
        super().on_body(body)

    def on_request_complete(self) -> None:
        self._phase = _Phase.NOTHING
        self._num_head_bytes = 0
        self._stop_deadline()
        super().on_request_complete()

    def on_response_complete(self) -> None:
        self._running = None
        self.on_lost = None
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._running is not None:
            if self._running is self.cycle and self._phase is _Phase.BODY:
                self._start_deadline(self.settings.body_seconds)
        elif self._refusal is not None:
            self._send_refusal()
        elif self._phase is _Phase.HEAD:
            self._unset_keepalive_if_required()
            self._start_deadline(self.settings.head_seconds)
        else:
            self.idle[self] = None

    def extend_body(self, seconds: float) -> None:
        """Extends the deadline of the body that is being received to ``seconds`` from now."""
        is_receiving = self._running is not None and self._running is self.cycle
        if is_receiving and self._phase is _Phase.BODY:
            self._start_deadline(seconds)

    def close_after_response(self) -> None:
        """Closes the connection; if the client still sends, only once it has read the response."""
        if self._phase is _Phase.NOTHING:
            self.transport.close()
        else:
            self._linger()

    def timeout_keep_alive_handler(self) -> None:
        """Closes the connection. If the client did not read the last response, resets it.

        While much of the response is left, only a client that stops reading is cut off.
        """
        if self.flow.write_paused:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.settings.keep_alive_seconds, self.timeout_keep_alive_handler
            )
        elif self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._check_later(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_check is not None:
            self._stall_check.cancel()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _check_later(self, num_bytes: int) -> None:
        self._stall_check = self.loop.call_later(
            self.settings.stall_seconds, self._check_stall, num_bytes
        )

    def _check_stall(self, num_bytes_before: int) -> None:
        """Resets the connection if the client read nothing since the previous check."""
        num_bytes = self.transport.get_write_buffer_size()
        if num_bytes < num_bytes_before:
            self._check_later(num_bytes)
        else:
            self.stalled = True
            self.transport.abort()

    def _start_deadline(self, seconds: float) -> None:
        """Limits the time of what is received; not of what comes while a response is made."""
        self._stop_deadline()
        self._deadline = self.loop.call_later(seconds, self._refuse, *_TOO_SLOW)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stop_timers(self) -> None:
        self._stop_deadline()
        if self._stall_check is not None:
            self._stall_check.cancel()

    def _refuse(self, status: int, reason: str) -> None:
        """Refuses what is being received, after the responses to what came before it; closes."""
        if self._phase is _Phase.WASTE or self.transport.is_closing():
            return
        is_body, self._phase = self._phase is _Phase.BODY, _Phase.WASTE
        self._stop_deadline()
        if is_body and self.cycle.response_started:
            self.transport.close()
            return
        if is_body:
            self._abandon(self.cycle)
        head = f"HTTP/1.1 {status} {reason}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        self._refusal = head.encode("ascii")
        if self._running is None:
            self._send_refusal()

    def _abandon(self, cycle: RequestResponseCycle) -> None:
        """Ends the newest request, which has no response yet."""
        cycle.disconnected = True
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        if self._running is not cycle:
            self.pipeline.popleft()
            return
        self._running = None
        if self.on_lost is not None:
            self.on_lost()
            self.on_lost = None

    def _send_refusal(self) -> None:
        assert self._refusal is not None
        self.transport.write(self._refusal)
        self._linger()

    def _linger(self) -> None:
        """Closes this side, and the other one when the client does, or after some time or bytes.

        Bytes that nobody reads would reset the connection, and the client could lose the response
        (RFC 9112, 9.6).
        """
        if self.transport.is_closing():
            return
        self._phase = _Phase.WASTE
        self._running = self._refusal = None
        self.pipeline.clear()
        self._stop_deadline()
        self._deadline = self.loop.call_later(
            self.settings.linger_seconds, self.timeout_keep_alive_handler
        )
        if self.transport.can_write_eof():  # not by TLS
            self.transport.write_eof()
        self.flow.resume_reading()
        self.idle[self] = None

    def _discard(self, num_bytes: int) -> None:
        self._num_discarded_bytes += num_bytes
        if self._running is None and self._num_discarded_bytes > self.settings.max_linger_bytes:
            self.timeout_keep_alive_handler()


def connection_type(settings: HttpSettings) -> type[Connection]:
    """Makes the connection type of one server, with its settings and its own ``idle`` set."""
    return type("Connection", (Connection,), {"settings": settings, "idle": {}})


def _common_name(tls: ssl.SSLObject | None) -> str | None:
    """The common name of the client's verified certificate; ``None`` without one."""
    certificate: Any = tls.getpeercert() if tls is not None else None
    names = (pair for part in (certificate or {}).get("subject", ()) for pair in part)
    return next((value for name, value in names if name == "commonName"), None)
