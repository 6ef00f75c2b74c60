"""Errors as gRPC statuses with ``google.rpc`` details."""

from collections.abc import Iterable

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from server.errors import InvalidArgumentError, OverloadedError, ServeError
from server.frontends.grpc.codec import wire_path

DOMAIN = "triune.dev"
DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"


def status_of(error: ServeError) -> grpc.StatusCode:
    """The gRPC status code of an error."""
    return grpc.StatusCode[error.code.name]


def message_of(error: ServeError, request: Message | None = None) -> str:
    """The status message. It begins with the path of the invalid field, if there is one."""
    violation = _violation(error, request)
    return str(error) if violation is None else f"{violation.field}: {violation.description}"


def metadata_of(
    error: ServeError, request: Message | None = None
) -> tuple[tuple[str, str | bytes], ...]:
    """Trailing metadata: the ``google.rpc.Status`` with details, and the retry delay.

    Args:
        error: the error that ended the call.
        request: the request whose field the error names; ``None`` if none was read.
    """
    status = status_pb2.Status(
        code=status_of(error).value[0],
        message=message_of(error, request),
        details=[_pack(detail) for detail in _details(error, request)],
    )
    metadata: list[tuple[str, str | bytes]] = [(DETAILS_KEY, status.SerializeToString())]
    if isinstance(error, OverloadedError):
        metadata.append((PUSHBACK_KEY, str(round(error.retry_seconds * 1000))))
    return tuple(metadata)


def _details(error: ServeError, request: Message | None) -> Iterable[Message]:
    metadata = {"limit": error.limit} if isinstance(error, OverloadedError) else {}
    yield error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN, metadata=metadata)
    violation = _violation(error, request)
    if violation is not None:
        yield error_details_pb2.BadRequest(field_violations=[violation])
    if isinstance(error, OverloadedError):
        delay = Duration()
        delay.FromNanoseconds(round(error.retry_seconds * 1e9))
        yield error_details_pb2.RetryInfo(retry_delay=delay)


def _violation(
    error: ServeError, request: Message | None
) -> error_details_pb2.BadRequest.FieldViolation | None:
    """The invalid field, by its path on the wire; ``None`` if the error names none."""
    if not isinstance(error, InvalidArgumentError):
        return None
    path = error.field if request is None else wire_path(request, error.field)
    return error_details_pb2.BadRequest.FieldViolation(field=path, description=error.description)


def _pack(message: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
