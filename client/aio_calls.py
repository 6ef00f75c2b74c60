"""Connects to a server and makes calls with retries, for asyncio: the base of ``client.aio``."""

from collections.abc import AsyncGenerator, Callable
from typing import Any, Self, TypeVar

import grpc.aio
import tenacity

from client.channel import DEFAULT_TARGET, OPEN, Security
from client.errors import typed_aio_errors
from client.retry import RetryPolicy, controls
from protos.triune.v1 import inference_pb2_grpc, models_pb2_grpc

Request = TypeVar("Request")
Response = TypeVar("Response")
Result = TypeVar("Result")


class AsyncCalls:
    """A connection. See :class:`client.aio.AsyncClient`."""

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout_seconds: float | None = None,
        retry: RetryPolicy | None = None,
        security: Security = OPEN,
    ) -> None:
        self._channel = security.aio_channel(target)
        self._metadata = security.metadata
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._models = models_pb2_grpc.ModelServiceStub(self._channel)
        self._timeout_seconds = timeout_seconds
        self._controls = controls(retry or RetryPolicy())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection and cancels calls in flight."""
        await self._channel.close()

    async def _call(
        self,
        method: "grpc.aio.UnaryUnaryMultiCallable[Request, Response]",
        request: Request,
        read: Callable[[Response], Result],
    ) -> Result:
        async for attempt in tenacity.AsyncRetrying(**self._controls):
            with attempt, typed_aio_errors():
                response = await method(
                    request, timeout=self._timeout_seconds, metadata=self._metadata
                )
        return read(response)

    async def _stream(
        self,
        method: "grpc.aio.UnaryStreamMultiCallable[Any, Response] | "
        "grpc.aio.StreamStreamMultiCallable[Any, Response]",
        make_request: Callable[[], Any],
        read: Callable[[Response], Result],
    ) -> AsyncGenerator[Result, None]:
        """Yields the responses. ``make_request`` returns an attempt's request, or its requests."""
        # Retries stop at the first response: a later retry would repeat text.
        async for attempt in tenacity.AsyncRetrying(**self._controls):
            with attempt, typed_aio_errors():
                call = method(
                    make_request(), timeout=self._timeout_seconds, metadata=self._metadata
                )
                messages = aiter(call)
                first = await anext(messages, None)
        try:
            with typed_aio_errors():
                if first is not None:
                    yield read(first)
                async for message in messages:
                    yield read(message)
        finally:
            call.cancel()
