"""Messages of a stream, to a client that may not read them."""

import asyncio

from google.protobuf.message import Message

from server.errors import RETRY_SECONDS, Limit, OverloadedError
from server.rpc.calls import Context


async def send(context: Context, message: Message, stall_seconds: float) -> None:
    """Writes one message of a stream.

    A write is done when the transport takes the message, which it does while the client reads,
    or has told that it has room. What comes meanwhile waits in the job's ticket.

    Raises:
        OverloadedError: the client has not made room for ``stall_seconds``.
    """
    try:
        async with asyncio.timeout(stall_seconds):
            await context.write(message)
    except TimeoutError:
        raise OverloadedError(
            f"the stream was not read for {stall_seconds:g} s", RETRY_SECONDS, Limit.SLOW_READER
        ) from None
