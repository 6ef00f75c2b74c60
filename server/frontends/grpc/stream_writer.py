"""Writes a stream to a client that may not read it."""

import asyncio
from types import TracebackType
from typing import Self

from google.protobuf.message import Message

from server.errors import RETRY_SECONDS, Limit, OverloadedError
from server.frontends.grpc.context import Context


class StreamWriter:
    """Writes one stream's messages. Use it with ``async with`` in the task that answers the call.

    A write ends when the transport takes the message, which it does while the client reads or has
    announced room. Later updates wait in the job's handle. A timer checks the current write every
    ``stall_seconds``; a timeout for each write would add a tenth to the cost of a token.

    Raises:
        OverloadedError: at the end of the block, if the client made no room for
            ``stall_seconds``.
    """

    def __init__(self, context: Context, stall_seconds: float) -> None:
        self._context = context
        self._stall_seconds = stall_seconds
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._write_started: float | None = None  # None: no write is under way
        self._next_check: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._check()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._next_check is not None:
            self._next_check.cancel()
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise OverloadedError(
                f"the stream was not read for {self._stall_seconds:g} s",
                RETRY_SECONDS,
                Limit.SLOW_READER,
            ) from None

    async def write(self, message: Message) -> None:
        self._write_started = self._loop.time()
        await self._context.write(message)
        self._write_started = None

    def _check(self) -> None:
        now = self._loop.time()
        started = now if self._write_started is None else self._write_started
        due = started + self._stall_seconds
        if due <= now:
            self._timeout.reschedule(now)
        else:
            self._next_check = self._loop.call_at(due, self._check)
