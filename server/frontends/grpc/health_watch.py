"""``grpc.health.v1`` whose watchers do not delay a server that drains."""

import asyncio
from typing import Any

from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckResponse

from server.frontends.grpc.context import Context

# A watcher that does not read delays the others by at most this long.
_MAX_SECONDS = 1.0


class HealthServicer(health.aio.HealthServicer):  # type: ignore[misc]
    """In a graceful shutdown, each watcher gets NOT_SERVING and its call ends.

    The library's servicer leaves the call open until the watcher leaves, and the server waits.
    """

    def __init__(self) -> None:
        super().__init__()
        self._draining = asyncio.Event()
        self._calls: set[asyncio.Task[Any]] = set()

    async def Watch(self, request: Any, context: Context) -> None:
        call = asyncio.current_task()
        if call is not None:
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        watch = asyncio.ensure_future(super().Watch(request, context))
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            await asyncio.wait([watch, draining], return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            draining.cancel()
            await asyncio.gather(watch, draining, return_exceptions=True)
        if self._draining.is_set():
            await context.write(HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING))

    async def enter_graceful_shutdown(self) -> None:
        """Everything is NOT_SERVING; watchers get that, and their calls end."""
        self._draining.set()
        if self._calls:
            await asyncio.wait(self._calls, timeout=_MAX_SECONDS)
        await super().enter_graceful_shutdown()
