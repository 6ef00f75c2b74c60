"""The HTTP front end: its listener, its protocols, and health."""

from server.config import ServerConfig
from server.frontends.http.access import Access
from server.frontends.http.application import Application, with_cors
from server.frontends.http.body import BodyBudget
from server.frontends.http.endpoint import Context
from server.frontends.http.listener import Listener
from server.frontends.http.probes import routes as probe_routes
from server.frontends.http.protocols import PROTOCOLS
from server.frontends.http.settings import HttpSettings
from server.frontends.http.tls import TlsContext
from server.service.service import Service
from server.telemetry.metrics import Metrics


class HttpFrontend:
    """One listener for all HTTP protocols; none if the configuration has no address.

    Args:
        config: the server's.
        metrics: the server's metrics, served at ``/metrics``.
    """

    def __init__(self, config: ServerConfig, metrics: Metrics) -> None:
        self._config = config
        self._metrics = metrics
        self._listener: Listener | None = None
        self.port: int | None = None

    async def start(self, service: Service) -> None:
        """Opens the listener.

        Raises:
            StartupError: the address, a certificate or the token file cannot be used.
        """
        config = self._config
        if config.http is None:
            return
        settings = HttpSettings.of(config)
        access = Access(config)
        context = Context(service, settings, access, BodyBudget(settings.max_buffered_bytes))
        routes = probe_routes(context, self._metrics)
        for protocol in PROTOCOLS:
            routes += protocol(context)
        app = with_cors(Application(routes, access), settings.cors_origins)
        tls = None if config.tls is None else TlsContext(config.tls).first
        self._listener = Listener(config.http, app, settings, tls)
        self.port = self._listener.port
        await self._listener.start()

    async def drain(self) -> None:
        """Refuses new calls at once, and cancels running calls after the grace period."""
        if self._listener is not None:
            await self._listener.stop(self._config.grace_seconds)
