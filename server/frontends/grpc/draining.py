"""Refuses new calls while the server drains.

gRPC's own shutdown ends calls that have arrived, but were not accepted yet, with ``CANCELLED``,
which neither clients nor proxies repeat. So listeners close once no more calls arrive.
"""

import asyncio
import time

import grpc

from server.errors import ShuttingDownError
from server.frontends.grpc.refusal import RefusingInterceptor

_QUIET_SECONDS = 0.2
# Longest wait for clients that keep calling. Proxies need about a second to see the health change.
_MAX_SECONDS = 2.0


class DrainingInterceptor(RefusingInterceptor):
    """Ends new calls with ``UNAVAILABLE`` once the server drains."""

    def __init__(self) -> None:
        self._is_draining = False
        self._last_arrival = 0.0

    async def refuse_until_quiet(self, grace_seconds: float) -> None:
        """Refuses calls from now on. Returns when no call has arrived for 0.2 s, or after 2 s."""
        self._is_draining = True
        self._last_arrival = time.monotonic()
        end = self._last_arrival + min(grace_seconds, _MAX_SECONDS)
        while (wait := min(self._last_arrival + _QUIET_SECONDS, end) - time.monotonic()) > 0:
            await asyncio.sleep(wait)

    def refusal(self, details: grpc.HandlerCallDetails) -> ShuttingDownError | None:
        del details
        if not self._is_draining:
            return None
        self._last_arrival = time.monotonic()
        return ShuttingDownError()
