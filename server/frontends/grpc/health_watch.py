"""A ``grpc.health.v1`` servicer that ends its Watch calls when the server drains."""

import asyncio
from contextlib import suppress
from typing import Any

import grpc.aio
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListResponse,
)

from server.frontends.grpc.context import Context

# The service name for liveness probes. It is NOT_SERVING only if the process must be replaced.
LIVENESS = "liveness"
# Longest wait at shutdown for watchers that do not read, in seconds.
_MAX_SECONDS = 1.0


class HealthServicer(health.aio.HealthServicer):  # type: ignore[misc]
    """Sends NOT_SERVING to each watcher in a graceful shutdown, and ends its call.

    The servicer of grpcio-health-checking leaves these calls open, which delays the shutdown, and
    does not implement ``List``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_live = True
        self._draining = asyncio.Event()
        self._calls: set[asyncio.Task[Any]] = set()

    async def Check(self, request: HealthCheckRequest, context: Context) -> HealthCheckResponse:
        if request.service == LIVENESS:
            return HealthCheckResponse(status=self._liveness)
        response: HealthCheckResponse = await super().Check(request, context)
        return response

    async def Watch(self, request: HealthCheckRequest, context: Context) -> None:
        call = asyncio.current_task()
        if call is not None:
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        if request.service == LIVENESS:
            await context.write(HealthCheckResponse(status=self._liveness))
            watch: asyncio.Future[Any] = asyncio.ensure_future(asyncio.Event().wait())
        else:
            watch = asyncio.ensure_future(super().Watch(request, context))
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            await asyncio.wait([watch, draining], return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            draining.cancel()
            await asyncio.gather(watch, draining, return_exceptions=True)
        if self._draining.is_set():
            with suppress(grpc.aio.InternalError, grpc.aio.UsageError):  # the watcher is gone
                status = HealthCheckResponse.NOT_SERVING
                if request.service == LIVENESS:
                    status = self._liveness
                await context.write(HealthCheckResponse(status=status))

    async def List(self, request: Any, context: Context) -> HealthListResponse:
        """Returns the status of every service."""
        del request, context
        return HealthListResponse(
            statuses={
                service: HealthCheckResponse(status=status)
                for service, status in (*self._server_status.items(), (LIVENESS, self._liveness))
            }
        )

    @property
    def _liveness(self) -> Any:
        response = HealthCheckResponse
        return response.SERVING if self.is_live else response.NOT_SERVING

    async def enter_graceful_shutdown(self) -> None:
        """Sets every status to NOT_SERVING, notifies the watchers, and ends their calls."""
        self._draining.set()
        if self._calls:
            await asyncio.wait(self._calls, timeout=_MAX_SECONDS)
        await super().enter_graceful_shutdown()
