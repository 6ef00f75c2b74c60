"""Around every gRPC call: who calls, until when, and errors as statuses."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from google.protobuf.message import Message

from server.errors import ServeError
from server.frontends.grpc.context import Context
from server.frontends.grpc.identity import identity_of
from server.frontends.grpc.status import message_of, metadata_of, status_of
from server.service.caller import Caller
from server.service.service import Service

# A call waits no longer than this for its status to be sent.
_ABORT_SECONDS = 1.0


@asynccontextmanager
async def answering(
    service: Service,
    method: str,
    request: Message,
    context: Context,
    *,
    keeps_model: bool = True,
) -> AsyncIterator[None]:
    """Around a call's body: counts it, and ends it with a status if it fails.

    Args:
        service: that answers.
        method: the call's name.
        request: whose fields errors name.
        context: of the call.
        keeps_model: the model that the request names stays loaded until the call ends.
    """
    model = getattr(request, "model", "") if keeps_model else ""
    try:
        async with service.counted(method, model):
            yield
    except ServeError as error:
        # The status of a stream that is not read waits behind what was sent before.
        with suppress(TimeoutError):
            async with asyncio.timeout(_ABORT_SECONDS):
                await context.abort(
                    status_of(error), message_of(error, request), metadata_of(error, request)
                )


def caller_of(context: Context) -> Caller:
    """The client, and when it stops waiting."""
    remaining = context.time_remaining()
    deadline = None if remaining is None else time.monotonic() + remaining
    return Caller(identity_of(context), deadline)
