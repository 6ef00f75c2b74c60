"""Writes response streams, and ends those that the client does not read."""

import asyncio
from types import TracebackType
from typing import Self

import grpc.aio
from google.protobuf.message import Message

from server.errors import RETRY_SECONDS, Limit, OverloadedError
from server.frontends.grpc.context import Context


class StreamWriter:
    """Writes the messages of one stream. Use it with ``async with`` in the task of the call.

    A write ends when gRPC accepts the message, which it does while the HTTP/2 flow-control window
    has room. Later updates wait in the job's handle. One timer checks the current write every
    ``stall_seconds``; a timeout per write would add 10 % to the cost of a token.

    Raises:
        OverloadedError: at the end of the block, if a write took longer than ``stall_seconds``.
    """

    def __init__(self, context: Context, stall_seconds: float) -> None:
        self._context = context
        self._stall_seconds = stall_seconds
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._write_started: float | None = None  # None: no write in progress
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

    async def write(self, message: Message | bytes) -> None:
        """Writes a message. Raises ``CancelledError``, as gRPC does, if the client is gone."""
        self._write_started = self._loop.time()
        try:
            await self._context.write(message)
        except (grpc.aio.InternalError, grpc.aio.UsageError) as error:
            # The write failed before gRPC cancelled this task.
            raise asyncio.CancelledError("the client is gone") from error
        self._write_started = None

    def _check(self) -> None:
        now = self._loop.time()
        started = now if self._write_started is None else self._write_started
        due = started + self._stall_seconds
        if due <= now:
            self._timeout.reschedule(now)
        else:
            self._next_check = self._loop.call_at(due, self._check)
