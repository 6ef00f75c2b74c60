"""From our errors to gRPC statuses with ``google.rpc`` details: one table."""

from collections.abc import Iterable

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

import grpc
from server import errors

DOMAIN = "triune.dev"
DETAILS_KEY = "grpc-status-details-bin"
PUSHBACK_KEY = "grpc-retry-pushback-ms"

STATUS: dict[type[errors.ServeError], grpc.StatusCode] = {
    errors.InvalidArgumentError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.RequestTooLargeError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ModelNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.BundleNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.LoadError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    errors.OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.ShuttingDownError: grpc.StatusCode.UNAVAILABLE,
    errors.EngineStoppedError: grpc.StatusCode.UNAVAILABLE,
    errors.InternalError: grpc.StatusCode.INTERNAL,
}


def status_of(error: errors.ServeError) -> grpc.StatusCode:
    """The gRPC status of an error of the closed set."""
    return STATUS[type(error)]


def message_of(error: errors.ServeError) -> str:
    """The status message; it names the field that a bad value came from."""
    field = field_of(error)
    return str(error) if field is None else f"{field}: {error}"


def field_of(error: errors.ServeError) -> str | None:
    """The request field to blame for what an engine limit refused."""
    if not isinstance(error, errors.RequestTooLargeError):
        return None
    return "stopping.max_new_tokens" if error.counts_new_tokens else "inputs"


def metadata_of(error: errors.ServeError) -> tuple[tuple[str, str | bytes], ...]:
    """Trailing metadata: the rich status, and when to try again."""
    status = status_pb2.Status(
        code=status_of(error).value[0],
        message=message_of(error),
        details=[_pack(detail) for detail in _details(error)],
    )
    metadata: list[tuple[str, str | bytes]] = [(DETAILS_KEY, status.SerializeToString())]
    if isinstance(error, errors.OverloadedError):
        metadata.append((PUSHBACK_KEY, str(round(error.retry_seconds * 1000))))
    return tuple(metadata)


def _details(error: errors.ServeError) -> Iterable[Message]:
    reason = status_of(error).name
    metadata = {"limit": error.limit} if isinstance(error, errors.OverloadedError) else {}
    yield error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata)
    if isinstance(error, errors.InvalidArgumentError):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=error.description
        )
        yield error_details_pb2.BadRequest(field_violations=[violation])
    field = field_of(error)
    if field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=str(error))
        yield error_details_pb2.BadRequest(field_violations=[violation])
    if isinstance(error, errors.OverloadedError):
        delay = Duration()
        delay.FromNanoseconds(round(error.retry_seconds * 1e9))
        yield error_details_pb2.RetryInfo(retry_delay=delay)


def _pack(message: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
