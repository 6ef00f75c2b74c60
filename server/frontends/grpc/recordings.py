"""Receives the recordings of TranscribeStream calls: bounded in bytes and in time.

While a recording arrives, its call takes no thread and no place in a queue, so a client that
sends slowly delays no other client.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from protos.triune.v1 import transcription_pb2 as pb
from server.bounds import MAX_AUDIO_BYTES
from server.errors import (
    RETRY_SECONDS,
    InvalidArgumentError,
    Limit,
    OverloadedError,
    ServeError,
    SlowSenderError,
)

# Maximum bytes of recordings that all calls hold together.
MAX_RECEIVED_BYTES = 256 << 20
# Timeout from the start of a call to the end of its recording.
RECEIVE_SECONDS = 120.0
_FIRST_MESSAGE_FIELDS = ("model", "version", "options", "priority")


class ReceivedBytes:
    """Counts the bytes of recordings that calls hold. One client may hold half of ``limit``."""

    def __init__(self, limit: int | None = None) -> None:
        """Sets the limit in bytes; by default :data:`MAX_RECEIVED_BYTES`."""
        self._limit = MAX_RECEIVED_BYTES if limit is None else limit
        self._by_client: Counter[str] = Counter()

    @property
    def num_bytes(self) -> int:
        """Bytes that all calls hold together."""
        return self._by_client.total()

    def take(self, num_bytes: int, client: str) -> None:
        """Adds bytes. Raises ``OverloadedError`` if the client or all clients hold too many."""
        own = self._by_client[client] + num_bytes
        if own > self._limit // 2 or self.num_bytes + num_bytes > self._limit:
            raise OverloadedError(
                "too many recordings are being received", RETRY_SECONDS, Limit.RECEIVED_MEMORY
            )
        self._by_client[client] = own

    def give_back(self, num_bytes: int, client: str) -> None:
        self._by_client[client] -= num_bytes
        if not self._by_client[client]:
            del self._by_client[client]


class IncomingRecording:
    """Receives the messages of one call. Its timeout starts with the constructor.

    Args:
        messages: the client's messages.
        held: counts the bytes of all calls.
        seconds: timeout for the last message; by default :data:`RECEIVE_SECONDS`.
    """

    def __init__(
        self,
        messages: AsyncIterator[pb.TranscribeStreamRequest],
        held: ReceivedBytes,
        seconds: float | None = None,
    ) -> None:
        self._messages = aiter(messages)
        self._held = held
        self._seconds = RECEIVE_SECONDS if seconds is None else seconds
        self._end = asyncio.get_running_loop().time() + self._seconds
        self._first_audio = b""
        self._error: ServeError | None = None

    async def first(self) -> pb.TranscribeStreamRequest:
        """The first message, without its audio; empty on failure, which ``received`` raises."""
        try:
            message = await self._next()
        except ServeError as error:
            self._error = error
            message = None
        if message is None:
            return pb.TranscribeStreamRequest()
        self._first_audio = message.audio
        message.ClearField("audio")
        # A copy: the message keeps the memory of the field.
        copy = pb.TranscribeStreamRequest()
        copy.CopyFrom(message)
        return copy

    @asynccontextmanager
    async def received(self, client: str) -> AsyncIterator[bytes]:
        """Waits for the whole recording, which counts as held by ``client`` while the block runs.

        Raises:
            InvalidArgumentError: the recording has too many bytes, or a later message sets fields
                that only the first may set.
            OverloadedError: too many bytes are held.
            SlowSenderError: the recording does not arrive in time.
        """
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its traceback keeps this frame: a cycle
        # A list of parts could take more memory for its objects than for the bytes in them.
        buffer = bytearray()
        part, self._first_audio = self._first_audio, b""
        num_bytes = 0
        try:
            while True:
                if num_bytes + len(part) > MAX_AUDIO_BYTES:
                    raise InvalidArgumentError("audio", f"has more than {MAX_AUDIO_BYTES} bytes")
                self._held.take(len(part), client)
                num_bytes += len(part)
                buffer += part
                message = await self._next()
                if message is None:
                    break
                _check_later(message)
                part = message.audio
            audio = bytes(buffer)
            del buffer, part
            yield audio
        finally:
            self._held.give_back(num_bytes, client)

    async def _next(self) -> pb.TranscribeStreamRequest | None:
        try:
            async with asyncio.timeout_at(self._end):
                return await anext(self._messages, None)
        except TimeoutError:
            raise SlowSenderError(self._seconds) from None


def _check_later(message: pb.TranscribeStreamRequest) -> None:
    for name in _FIRST_MESSAGE_FIELDS:
        is_set = message.HasField("options") if name == "options" else getattr(message, name)
        if is_set:
            raise InvalidArgumentError(name, "is only allowed in the first message of the stream")
