"""Refuses new calls while the server drains.

gRPC's own shutdown ends calls that have arrived, but were not accepted yet, with ``CANCELLED``,
which neither clients nor proxies repeat. So listeners close once no more calls arrive.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from server.errors import ShuttingDownError
from server.frontends.grpc.auth import PUBLIC_METHODS
from server.frontends.grpc.calls import abort, abort_without_cycle
from server.frontends.grpc.context import Context

_QUIET_SECONDS = 0.2
# For clients that do not stop. Proxies need about a second to see that the health changed.
_MAX_SECONDS = 2.0


class DrainingInterceptor(grpc.aio.ServerInterceptor):
    """Ends new calls with ``UNAVAILABLE`` once the server drains, except probes of its health."""

    def __init__(self) -> None:
        self._is_draining = False
        self._last_arrival = 0.0

    async def refuse_until_quiet(self, grace_seconds: float) -> None:
        """Refuses calls from now on. Returns when no call has arrived for a moment."""
        self._is_draining = True
        self._last_arrival = time.monotonic()
        end = self._last_arrival + min(grace_seconds, _MAX_SECONDS)
        while (wait := min(self._last_arrival + _QUIET_SECONDS, end) - time.monotonic()) > 0:
            await asyncio.sleep(wait)

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any] | None"]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any] | None":
        if not self._is_draining or str(handler_call_details.method) in PUBLIC_METHODS:
            return await continuation(handler_call_details)
        self._last_arrival = time.monotonic()
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(_: Any, context: Context) -> None:
    with abort_without_cycle():
        await abort(ShuttingDownError(), context)
