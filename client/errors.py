"""``TriuneError``, which all calls raise: a gRPC status with its ``google.rpc`` details."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import cast

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

MAX_DELAY_SECONDS = 365 * 86_400.0
"""A longer retry delay is ignored, as one below 0 is: nobody could wait for it."""
_DETAILS_KEY = "grpc-status-details-bin"


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """An invalid field of the request, as a path ("sampling.top_p"), and what is wrong with it."""

    field: str
    description: str


class TriuneError(Exception):
    """A call that failed.

    Attributes:
        code: the gRPC status.
        message: the server's error message.
        violations: the invalid fields; may be empty.
        reason: a stable identifier for programs; may be empty.
        retry_delay_seconds: the server's suggested retry delay; may be ``None``.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        violations: tuple[FieldViolation, ...] = (),
        reason: str = "",
        retry_delay_seconds: float | None = None,
    ) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.violations = violations
        self.reason = reason
        self.retry_delay_seconds = retry_delay_seconds

    def __str__(self) -> str:
        """One line: status, message, fields, retry delay."""
        parts = [f"{self.code.name}: {self.message}"]
        parts += [
            f"{bad.field}: {bad.description}"
            for bad in self.violations
            if bad.field not in self.message or bad.description not in self.message
        ]
        if self.retry_delay_seconds is not None:
            parts.append(f"retry in {self.retry_delay_seconds:g} s")
        return " ".join("; ".join(parts).split())


@contextmanager
def typed_errors() -> Iterator[None]:
    """Converts errors of ``grpc`` and ``grpc.aio`` to ``TriuneError``."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error


@contextmanager
def typed_aio_errors() -> Iterator[None]:
    """As :func:`typed_errors`, for a task.

    ``grpc.aio`` raises ``CancelledError`` if the call was cancelled without the task: its channel
    was closed, or its requests raised an error. That is the status CANCELLED.
    """
    try:
        with typed_errors():
            yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise TriuneError(grpc.StatusCode.CANCELLED, "the call was cancelled") from error


def from_rpc_error(error: grpc.RpcError) -> TriuneError:
    """The ``TriuneError`` of a gRPC status. Details that cannot be parsed are ignored."""
    violations: list[FieldViolation] = []
    reason = ""
    retry_delay_seconds = None
    for detail in _details(error):
        bad_request = error_details_pb2.BadRequest()
        retry_info = error_details_pb2.RetryInfo()
        error_info = error_details_pb2.ErrorInfo()
        if detail.Unpack(bad_request):
            violations += [
                FieldViolation(row.field, row.description) for row in bad_request.field_violations
            ]
        elif detail.Unpack(retry_info):
            delay = retry_info.retry_delay
            seconds = delay.seconds + delay.nanos / 1e9
            retry_delay_seconds = seconds if 0 <= seconds <= MAX_DELAY_SECONDS else None
        elif detail.Unpack(error_info):
            reason = error_info.reason
    return TriuneError(
        error.code(),
        error.details() or "",
        violations=tuple(violations),
        reason=reason,
        retry_delay_seconds=retry_delay_seconds,
    )


def _details(error: grpc.RpcError) -> list[any_pb2.Any]:
    """The details of the ``google.rpc.Status`` in the trailing metadata."""
    # grpc and grpc.aio declare different types; both are sequences of pairs.
    trailer = cast("Iterable[tuple[str, bytes]]", error.trailing_metadata() or ())
    for key, value in trailer:
        if key == _DETAILS_KEY:
            with suppress(DecodeError):
                return list(status_pb2.Status.FromString(value).details)
    return []
