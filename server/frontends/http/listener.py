"""The HTTP listener: uvicorn on the running event loop."""

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from server.addresses import host_and_port
from server.errors import StartupError
from server.frontends.http.connection import connection_type
from server.frontends.http.settings import HttpSettings

_BACKLOG = 2048
# Unsent bytes that the kernel buffers per connection. More would hide that a client does not read.
_UNSENT_BYTES = 128 << 10
# File descriptors for everything except HTTP connections: models, gRPC, metrics.
_RESERVED_FILES = 1024


class Listener:
    """Serves an ASGI application on one address.

    Args:
        bound: the socket from :func:`bound_socket`.
        app: the application.
        settings: limits of connections.
        tls: the TLS context; ``None`` for plain HTTP.
    """

    def __init__(
        self,
        bound: socket.socket,
        app: ASGIApp,
        settings: HttpSettings,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._socket = bound
        _allow_files(settings.max_connections + _RESERVED_FILES)
        config = uvicorn.Config(
            app,
            http=connection_type(settings),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level=logging.ERROR,
            access_log=False,
            # With proxy headers, clients could claim any address.
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=int(settings.keep_alive_seconds),
            ssl_context_factory=None if tls is None else lambda *_: tls,
        )
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts to accept connections.

        Raises:
            StartupError: another process has begun to listen on the address.
        """
        try:
            self._socket.listen(_BACKLOG)
        except OSError as error:
            raise StartupError(f"cannot serve HTTP: {error.strerror}") from error
        self._task = asyncio.create_task(self._server.serve([self._socket]))
        await self._server.accepting.wait()

    async def stop(self, grace_seconds: float) -> None:
        """Closes idle connections; cancels the requests that still run after ``grace_seconds``."""
        if self._task is None:
            return
        self._server.grace_seconds = grace_seconds
        self._server.should_exit = True
        await self._task


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, and with a shutdown that cancels late requests."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()
        self.grace_seconds = 0.0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listening in sockets or []:
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        tasks = set(self.server_state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self.grace_seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1.0)  # they still send their errors
        for connection in list(self.server_state.connections):
            connection.transport.close()


def bound_socket(
    address: str, purpose: str = "serve HTTP", *, has_ipv4: bool = False
) -> socket.socket:
    """A socket that reserves ``HOST:PORT``. Connections are refused until it listens.

    Args:
        address: the address.
        purpose: what the server cannot do without it, for the error.
        has_ipv4: whether ``[::]`` includes all addresses of IPv4.

    Raises:
        StartupError: the address cannot be used.
    """
    host, port = host_and_port(address)
    try:
        (family, *_, name), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        bound = socket.socket(family)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not has_ipv4)
            # Connections inherit this option.
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
            bound.bind(name)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise StartupError(f"cannot {purpose} on {address}: {error.strerror or error}") from error
    return bound


def _allow_files(number: int) -> None:
    """Raises this process's soft limit of open files to ``number``, within its hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number if hard == resource.RLIM_INFINITY else min(number, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
