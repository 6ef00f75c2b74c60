"""Connects to a server and makes calls that block, with retries: the base of ``client.sync``."""

from collections.abc import Callable, Generator
from itertools import chain, islice
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import tenacity

from client.channel import DEFAULT_TARGET, OPEN, Security
from client.errors import typed_errors
from client.retry import RetryPolicy, controls
from protos.triune.v1 import inference_pb2_grpc, models_pb2_grpc

Request = TypeVar("Request")
Response = TypeVar("Response")
Result = TypeVar("Result")


class Calls:
    """A connection. See :class:`client.sync.Client`."""

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout_seconds: float | None = None,
        retry: RetryPolicy | None = None,
        security: Security = OPEN,
    ) -> None:
        self._channel = security.channel(target)
        self._metadata = security.metadata
        self._inference = inference_pb2_grpc.InferenceServiceStub(self._channel)
        self._models = models_pb2_grpc.ModelServiceStub(self._channel)
        self._timeout_seconds = timeout_seconds
        self._controls = controls(retry or RetryPolicy())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection and cancels calls in flight."""
        self._channel.close()

    def _call(
        self,
        method: "grpc.UnaryUnaryMultiCallable[Request, Response]",
        request: Request,
        read: Callable[[Response], Result],
    ) -> Result:
        for attempt in tenacity.Retrying(**self._controls):
            with attempt, typed_errors():
                response = method(request, timeout=self._timeout_seconds, metadata=self._metadata)
        return read(response)

    def _stream(
        self,
        method: "grpc.UnaryStreamMultiCallable[Any, Response] | "
        "grpc.StreamStreamMultiCallable[Any, Response]",
        make_request: Callable[[], Any],
        read: Callable[[Response], Result],
    ) -> Generator[Result, None, None]:
        """Yields the responses. ``make_request`` returns an attempt's request, or its requests."""
        # Retries stop at the first response: a later retry would repeat text.
        for attempt in tenacity.Retrying(**self._controls):
            with attempt, typed_errors():
                call = method(
                    make_request(), timeout=self._timeout_seconds, metadata=self._metadata
                )
                first = list(islice(call, 1))
        try:
            with typed_errors():
                yield from map(read, chain(first, call))
        finally:
            call.cancel()
