"""Rejects messages that are not valid protobuf, which gRPC reports as UNKNOWN with a traceback.

Rejects messages with too many fields, too, before they are parsed. Large messages are scanned and
parsed in a thread, so that they do not block the event loop.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError

from server.errors import InvalidArgumentError
from server.frontends.grpc.calls import abort_without_cycle, caller_of, rpc_scope
from server.frontends.grpc.context import Context
from server.frontends.grpc.wire_size import MAX_FIELDS, MIN_SCANNED_BYTES, has_too_many_fields
from server.service.service import Service

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
# The cost of scanning a large message, as the number of reply values that take the same time.
_PARSE_VALUES = 1 << 15
# The error that replaces a rejected message, by reason.
_MALFORMED = InvalidArgumentError("request", "is not a valid protobuf message of this method")
_TOO_LARGE = InvalidArgumentError("request", f"has more than {MAX_FIELDS} fields or too many ids")


class MalformedMessageInterceptor(grpc.aio.ServerInterceptor):
    """Ends calls with malformed requests with ``INVALID_ARGUMENT``, and counts them."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._checked: dict[str, tuple[Handler, Handler]] = {}  # original and checked, by method

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = str(handler_call_details.method)
        original, checked = self._checked.get(method, (None, None))
        if original is not handler:
            checked = _checked(handler, self._service, method.rpartition("/")[2])
            self._checked[method] = handler, checked
        return checked


def _checked(handler: Any, service: Service, method: str) -> Handler:
    """Wraps ``handler`` with a check of each request before it reaches the servicer."""
    behavior = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )

    async def abort(error: InvalidArgumentError, context: Context) -> None:
        async with rpc_scope(service, method, Empty(), context):
            # Raise a copy: the traceback of ``error`` would keep this frame, which holds ``error``.
            raise InvalidArgumentError(error.field, error.description)

    async def parse(message: Any, context: Context) -> Any:
        if isinstance(message, InvalidArgumentError):
            raise InvalidArgumentError(message.field, message.description)
        if isinstance(message, partial):
            return await service.build(_PARSE_VALUES, message, caller_of(context))
        return message

    async def parse_stream(messages: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async for message in messages:
            yield await parse(message, context)

    async def parsed(request: Any, context: Context) -> Any:
        if handler.request_streaming:
            return parse_stream(request, context)
        return await parse(request, context)

    async def call(request: Any, context: Context) -> Any:
        with abort_without_cycle():
            try:
                return await behavior(await parsed(request, context), context)
            except InvalidArgumentError as error:
                return await abort(error, context)

    async def generate(request: Any, context: Context) -> AsyncIterator[Any]:
        with abort_without_cycle():
            try:
                async for response in behavior(await parsed(request, context), context):
                    yield response
            except InvalidArgumentError as error:
                await abort(error, context)

    kinds = (
        (grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler),
        (grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler),
    )
    make: Any = kinds[handler.request_streaming][handler.response_streaming]
    checked: Handler = make(
        generate if inspect.isasyncgenfunction(behavior) else call,
        request_deserializer=_decoder(handler.request_deserializer),
        response_serializer=_encoder(handler.response_serializer),
    )
    return checked


def _encoder(encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Wraps ``encode`` to pass on ``bytes``: large responses were serialized in a thread."""
    return lambda response: response if isinstance(response, bytes) else encode(response)


def _decoder(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    kind = getattr(decode, "__self__", None)  # the message type; ``decode`` is its FromString

    def parse(data: bytes) -> Any:
        try:
            if kind is not None and has_too_many_fields(data, kind.DESCRIPTOR):
                raise InvalidArgumentError(_TOO_LARGE.field, _TOO_LARGE.description)
            return decode(data)
        except DecodeError:
            raise InvalidArgumentError(_MALFORMED.field, _MALFORMED.description) from None

    def decode_or_mark(data: bytes) -> Any:
        if len(data) >= MIN_SCANNED_BYTES:
            return partial(parse, data)
        try:
            return decode(data)
        except DecodeError:
            return _MALFORMED

    return decode_or_mark
