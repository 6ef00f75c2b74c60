"""Around every call: errors become statuses, and the call is counted."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
from server.errors import InternalError, ServeError
from server.frontends.grpc.status import message_of, metadata_of, status_of
from server.models.catalog import Catalog
from server.telemetry.metrics import Metrics

Context = grpc.aio.ServicerContext[Any, Any]
log = logging.getLogger(__name__)

# A label for calls that name no model of ours: label values stay bounded.
UNKNOWN_MODEL = "unknown"

# No longer does a call wait until its status is on its way.
_ABORT_SECONDS = 1.0


@asynccontextmanager
async def guarded(
    method: str, model: str, context: Context, catalog: Catalog, metrics: Metrics
) -> AsyncIterator[None]:
    """Runs a call's body; the model that it finds by name stays until it ends.

    ``ServeError`` ends the call with its status and details; anything else is
    logged and ends it with ``INTERNAL``.
    """
    started = time.monotonic()
    status = grpc.StatusCode.CANCELLED  # what it is if the body is abandoned
    try:
        try:
            with catalog.calls.of(model):
                yield
            status = grpc.StatusCode.OK
        except ServeError as error:
            status = status_of(error)
            await _abort(context, error)
        except Exception:
            log.exception("%s failed", method)
            fault = InternalError("the call failed")
            status = status_of(fault)
            await _abort(context, fault)
    finally:
        label = model if model in catalog.registry.names else UNKNOWN_MODEL
        metrics.on_request(label, method, status.name, time.monotonic() - started)


async def _abort(context: Context, error: ServeError) -> None:
    """Ends the call. The status of a stream that is not read waits behind what was sent."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_ABORT_SECONDS):
            await context.abort(status_of(error), message_of(error), metadata_of(error))


def deadline_of(context: Context) -> float | None:
    """When the caller stops waiting, in seconds of ``time.monotonic``."""
    remaining = context.time_remaining()
    return None if remaining is None else time.monotonic() + remaining
