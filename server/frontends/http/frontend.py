"""The HTTP front end: its listener, protocols and health probes."""

import socket
import ssl

from server.config import ServerConfig
from server.errors import StartupError
from server.frontends.http.access import Access
from server.frontends.http.application import Application, with_cors
from server.frontends.http.body import BodyBudget
from server.frontends.http.endpoint import Context
from server.frontends.http.listener import Listener, bound_socket
from server.frontends.http.probes import routes as probe_routes
from server.frontends.http.protocols import PROTOCOLS
from server.frontends.http.settings import HttpSettings
from server.frontends.http.tls import TlsContext
from server.service.service import Service
from server.telemetry.metrics import Metrics


class HttpFrontend:
    """Runs one listener for all HTTP protocols; none if the configuration has no address.

    Args:
        config: the server's configuration.
        metrics: the server's metrics, served at ``/metrics``.
    """

    def __init__(self, config: ServerConfig, metrics: Metrics) -> None:
        self._config = config
        self._metrics = metrics
        self._access: Access | None = None
        self._tls: ssl.SSLContext | None = None
        self._socket: socket.socket | None = None
        self._listener: Listener | None = None

    @property
    def port(self) -> int | None:
        """The port once :meth:`prepare` has bound it; ``None`` without an address."""
        return None if self._socket is None else int(self._socket.getsockname()[1])

    def prepare(self) -> None:
        """Binds the address and reads tokens and certificates. Connections are still refused.

        Raises:
            StartupError: the address, a certificate or the token file cannot be used.
        """
        config = self._config
        if config.http is None:
            return
        self._access = Access(config)
        if config.tls is not None:
            self._tls = TlsContext(config.tls).first
        try:
            self._socket = bound_socket(config.http)
        except StartupError as error:
            raise StartupError(f"{error}; --http chooses another address, or none") from error

    def close(self) -> None:
        """Releases the address. Call this last, even if the front end never started."""
        if self._socket is not None:
            self._socket.close()

    async def start(self, service: Service) -> None:
        """Opens the listener. Call :meth:`prepare` first.

        Raises:
            StartupError: another process has taken the address.
        """
        access = self._access
        if self._socket is None or access is None:
            return
        settings = HttpSettings.of(self._config)
        context = Context(service, settings, access, BodyBudget(settings.max_buffered_bytes))
        routes = probe_routes(context, self._metrics)
        for protocol in PROTOCOLS:
            routes += protocol(context)
        app = with_cors(Application(routes, access, settings.cors_origins), settings.cors_origins)
        self._listener = Listener(self._socket, app, settings, self._tls)
        await self._listener.start()

    async def drain(self) -> None:
        """Refuses new calls at once, and cancels running calls after the grace period."""
        if self._listener is not None:
            await self._listener.stop(self._config.grace_seconds)
