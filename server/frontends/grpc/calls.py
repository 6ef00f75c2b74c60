"""Helpers of all gRPC calls: the caller's identity and deadline, and errors as statuses."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import grpc.aio
from google.protobuf.message import Message

from server.errors import ServeError
from server.frontends.grpc.context import Context
from server.frontends.grpc.identity import identity_of
from server.frontends.grpc.status import message_of, metadata_of, status_of
from server.service.caller import Caller
from server.service.service import Service

# Timeout for sending the status of a failed call.
_ABORT_SECONDS = 1.0


@asynccontextmanager
async def rpc_scope(
    service: Service,
    method: str,
    request: Message,
    context: Context,
    *,
    model: str | None = None,
    keeps_model: bool = True,
) -> AsyncIterator[None]:
    """Wraps the body of a call: counts it in the metrics, and maps ``ServeError`` to a status.

    Args:
        service: the service that handles the call.
        method: the call's name, a metric label.
        request: the request, whose field paths appear in errors.
        context: the gRPC context of the call.
        model: the model that the request names; by default its field ``model``.
        keeps_model: whether that model stays loaded until the call ends.
    """
    if model is None:
        model = getattr(request, "model", "")
    try:
        async with service.track_call(method, model if keeps_model else ""):
            yield
    except ServeError as error:
        await abort(error, context, request)


async def abort(error: ServeError, context: Context, request: Message | None = None) -> None:
    """Ends a call with the status of ``error``, whose field paths are those of ``request``."""
    # If the client does not read its stream, the status waits behind earlier messages. If the
    # client is gone, the status is dropped.
    with suppress(TimeoutError, grpc.aio.InternalError, grpc.aio.UsageError):
        async with asyncio.timeout(_ABORT_SECONDS):
            await context.abort(
                status_of(error), message_of(error, request), metadata_of(error, request)
            )


@contextmanager
def abort_without_cycle() -> Iterator[None]:
    """Suppresses the ``AbortError`` of the block; gRPC raises it again after the handler.

    gRPC keeps the error as long as the call. The error's traceback would keep its frames, which
    refer to the call: a cycle that only a full garbage collection frees.
    """
    try:
        yield
    except grpc.aio.AbortError as error:
        error.__traceback__ = error.__context__ = None


def caller_of(context: Context) -> Caller:
    """The client's identity and the call's deadline."""
    remaining = context.time_remaining()
    deadline = None if remaining is None else time.monotonic() + remaining
    return Caller(identity_of(context), deadline)
