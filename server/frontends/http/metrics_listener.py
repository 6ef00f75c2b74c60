"""The address for Prometheus: the HTTP listener with metrics alone, without TLS and tokens."""

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from server.frontends.http.listener import Listener, bound_socket
from server.frontends.http.settings import HttpSettings
from server.telemetry.metrics import Metrics

MAX_CONNECTIONS = 64
_MAX_BODY_BYTES = 1 << 16  # which is not read
_GRACE_SECONDS = 1.0


class MetricsListener:
    """Serves the metrics on an address, which it holds from now on; connections are refused.

    Args:
        address: ``HOST:PORT``.
        metrics: the server's metrics.

    Raises:
        StartupError: the address cannot be used.
    """

    def __init__(self, address: str, metrics: Metrics) -> None:
        self._socket = bound_socket(address, "serve metrics", has_ipv4=True)
        settings = HttpSettings(
            max_connections=MAX_CONNECTIONS, max_linger_bytes=_MAX_BODY_BYTES, stall_seconds=30.0
        )
        self._listener = Listener(self._socket, _only_valid(metrics.asgi_app()), settings, None)

    @property
    def port(self) -> int:
        """The port, also before the start."""
        return int(self._socket.getsockname()[1])

    async def start(self) -> None:
        """Accepts connections from now on.

        Raises:
            StartupError: another process has taken the address.
        """
        await self._listener.start()

    async def stop(self) -> None:
        """Closes all connections, and those with a request after a second."""
        await self._listener.stop(_GRACE_SECONDS)

    def close(self) -> None:
        """Gives the address back. Call it last, also without a start."""
        self._socket.close()


def _only_valid(app: ASGIApp) -> ASGIApp:
    """``app``, which gets no queries and headers that are not UTF-8: they are errors of it."""

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope["query_string"].decode()
            for name, value in scope["headers"]:
                (name + value).decode()
        except UnicodeDecodeError:
            await PlainTextResponse("not UTF-8", 400)(scope, receive, send)
            return
        await app(scope, receive, send)

    return check
