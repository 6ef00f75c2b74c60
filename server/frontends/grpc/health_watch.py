"""``grpc.health.v1`` whose watchers do not hold a server up that drains."""

import asyncio
from typing import Any

from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckResponse

from server.frontends.grpc.calls import Context

# So long may a watcher that does not read hold the others up.
_MAX_SECONDS = 1.0


class HealthServicer(health.aio.HealthServicer):  # type: ignore[misc]
    """In a graceful shutdown a watcher is told NOT_SERVING, and its call ends.

    The library's goes on until the watcher leaves, and the server waits for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._draining = asyncio.Event()
        self._calls: set[asyncio.Task[Any]] = set()

    async def Watch(self, request: Any, context: Context) -> None:  # noqa: N802
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
        """Nothing is SERVING from here on; watchers are told, and their calls end."""
        self._draining.set()
        if self._calls:
            await asyncio.wait(self._calls, timeout=_MAX_SECONDS)
        await super().enter_graceful_shutdown()
