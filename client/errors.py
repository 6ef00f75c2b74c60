"""The one error that calls raise, read from a gRPC status and its ``google.rpc`` details."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import cast

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

_DETAILS_KEY = "grpc-status-details-bin"


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """Which field of the request was bad, as a path ("sampling.top_p"), and why."""

    field: str
    description: str


class TriuneError(Exception):
    """A call that failed.

    ``code`` is the gRPC status, ``message`` the server's text. ``violations`` name the bad
    fields, ``reason`` is a stable word for programs, and ``retry_delay_seconds`` says when to
    come back; each is empty or ``None`` where the server sent none.
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
        """One line: status, message, fields, when to retry."""
        told = [f"{self.code.name}: {self.message}"]
        told += [
            f"{bad.field}: {bad.description}"
            for bad in self.violations
            if bad.field not in self.message or bad.description not in self.message
        ]
        if self.retry_delay_seconds is not None:
            told.append(f"retry in {self.retry_delay_seconds:g} s")
        return " ".join("; ".join(told).split())


@contextmanager
def typed_errors() -> Iterator[None]:
    """Turns what ``grpc`` and ``grpc.aio`` raise into ``TriuneError``."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(error) from error


def from_rpc_error(error: grpc.RpcError) -> TriuneError:
    """The typed form of a status.

    Details that cannot be parsed are left out: the status and its message still tell.
    """
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
            retry_delay_seconds = retry_info.retry_delay.ToTimedelta().total_seconds()
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
    # Pairs both in grpc and in grpc.aio, whatever the two call their type.
    trailer = cast("Iterable[tuple[str, bytes]]", error.trailing_metadata() or ())
    for key, value in trailer:
        if key == _DETAILS_KEY:
            with suppress(DecodeError):
                return list(status_pb2.Status.FromString(value).details)
    return []
