"""Messages of a stream, to a client that may not read them."""

import asyncio
from types import TracebackType
from typing import Self

from google.protobuf.message import Message

from server.errors import RETRY_SECONDS, Limit, OverloadedError
from server.frontends.grpc.calls import Context


class Writer:
    """Writes one stream's messages, in an ``async with`` in the task that answers the call.

    A write is done when the transport takes the message, which it does while the client reads,
    or has told that it has room. What comes meanwhile waits in the job's ticket. Writes are
    looked at now and then, not timed one by one: that would be a tenth of what a token costs.

    Raises:
        OverloadedError: where the block ends, when the client has not made room for
            ``stall_seconds``.
    """

    def __init__(self, context: Context, stall_seconds: float) -> None:
        self._context = context
        self._stall_seconds = stall_seconds
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._begun: float | None = None  # when the write that is under way was
        self._next_look: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._look()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise OverloadedError(
                f"the stream was not read for {self._stall_seconds:g} s",
                RETRY_SECONDS,
                Limit.SLOW_READER,
            ) from None

    async def write(self, message: Message) -> None:
        self._begun = self._loop.time()
        await self._context.write(message)
        self._begun = None

    def _look(self) -> None:
        now = self._loop.time()
        due = (now if self._begun is None else self._begun) + self._stall_seconds
        if due <= now:
            self._timeout.reschedule(now)
        else:
            self._next_look = self._loop.call_at(due, self._look)
