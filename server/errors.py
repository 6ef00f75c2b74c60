"""The closed set of errors that a client can receive.

Each has a code of ``google.rpc.Code``, which front ends map to the statuses of their protocol.
"""

from enum import StrEnum
from typing import ClassVar

from server.printable import MAX_FIELD_BYTES, MAX_MESSAGE_BYTES, quoted, shortened


class Code(StrEnum):
    """The status of a call: names of ``google.rpc.Code``, and the ``status`` label of metrics."""

    OK = "OK"
    CANCELLED = "CANCELLED"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    UNAVAILABLE = "UNAVAILABLE"
    INTERNAL = "INTERNAL"


class ServeError(Exception):
    """A failed request. ``str(error)`` is sent to the client: no file paths, no internals.

    The message may repeat what a client sent, so it is made printable and cut.
    """

    code: ClassVar[Code] = Code.INTERNAL

    def __init__(self, message: str) -> None:
        super().__init__(shortened(message, MAX_MESSAGE_BYTES))


class InvalidArgumentError(ServeError):
    """An invalid value in a request.

    Attributes:
        field: its path in the service's request, such as ``inputs[2]`` or ``top_p``. Front ends
            translate it to the path in their protocol.
        description: what is wrong with it.
    """

    code = Code.INVALID_ARGUMENT

    def __init__(self, field: str, description: str) -> None:
        self.field = shortened(field, MAX_FIELD_BYTES)
        self.description = shortened(description, MAX_MESSAGE_BYTES)
        super().__init__(f"{self.field}: {self.description}")


class ContextLengthError(InvalidArgumentError):
    """An input with more tokens than the model accepts."""


class ModelNotFoundError(ServeError):
    code = Code.NOT_FOUND

    def __init__(self, model: str, available: list[str]) -> None:
        names = ", ".join(available) or "none"
        super().__init__(f"model {quoted(model)} is not served here; served: {names}")


class BundleNotFoundError(ServeError):
    code = Code.NOT_FOUND

    def __init__(self, label: str) -> None:
        super().__init__(f"there is no bundle {quoted(label)}")


class LoadError(ServeError):
    """A bundle that cannot be served; the message says why."""

    code = Code.FAILED_PRECONDITION


class BundleChangedError(ServeError):
    """A part of a bundle is needed whose files are not those that the served model has."""

    code = Code.FAILED_PRECONDITION

    def __init__(self, label: str) -> None:
        super().__init__(
            f"the files of {quoted(label)} have changed since it was loaded, and its attention was "
            "not loaded yet: load it again"
        )


class UnauthenticatedError(ServeError):
    code = Code.UNAUTHENTICATED

    def __init__(self) -> None:
        super().__init__("a valid bearer token is required")


class Limit(StrEnum):
    """The limit that was reached: a stable, machine-readable name."""

    QUEUE_ROWS = "queue_rows"
    QUEUE_TOKENS = "queue_tokens"
    CLIENT_TOKENS = "client_tokens"  # per second
    CLIENT_SHARE = "client_share"  # of the queue, while other clients want places
    DECODED_MEMORY = "decoded_memory"  # memory of decoded images and recordings
    THREADS = "threads"  # too many requests wait to be tokenized
    DEADLINE = "deadline"  # the estimated wait exceeds the request's deadline
    SLOW_READER = "slow_reader"  # the client does not read its stream
    DEVICE_MEMORY = "device_memory"  # of the device that runs the model: a run could not get it
    RECEIVED_MEMORY = "received_memory"  # memory of recordings that are being received


RETRY_SECONDS = 1.0
"""The suggested retry delay if the server cannot estimate one."""


class OverloadedError(ServeError):
    """The server is over capacity. The client may retry after ``retry_seconds``."""

    code = Code.RESOURCE_EXHAUSTED

    def __init__(self, message: str, retry_seconds: float, limit: Limit) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds
        self.limit = limit


class DeadlineError(ServeError):
    code = Code.DEADLINE_EXCEEDED

    def __init__(self) -> None:
        super().__init__("the deadline passed before the request was completed")


class SlowSenderError(ServeError):
    """A client did not send its request in time."""

    code = Code.DEADLINE_EXCEEDED

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the request was not received within {seconds:g} s")


class ShuttingDownError(ServeError):
    code = Code.UNAVAILABLE

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class EngineStoppedError(ServeError):
    """The engine stopped before the request was completed. Another server may complete it."""

    code = Code.UNAVAILABLE

    def __init__(self) -> None:
        super().__init__("the engine stopped")


class InternalError(ServeError):
    """An error of the server. The server's log has the cause."""

    code = Code.INTERNAL

    def __init__(self, message: str = "the model run failed") -> None:
        super().__init__(message)


class StartupError(Exception):
    """The server cannot start as configured. The message is for the operator."""
