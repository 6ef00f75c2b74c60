"""All errors that a caller can receive.

Each has a code of ``google.rpc.Code``, which every protocol's front end maps to its own statuses.
"""

from enum import StrEnum
from typing import ClassVar


class Code(StrEnum):
    """How a call ended: names of ``google.rpc.Code``, also the ``status`` label of metrics."""

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
    """A request that fails. ``str(error)`` is sent to the client: no paths, no internals."""

    code: ClassVar[Code] = Code.INTERNAL


class InvalidArgumentError(ServeError):
    """A bad value in a request.

    Attributes:
        field: its path in the service's request, such as ``inputs[2]`` or ``top_p``. Front ends
            translate it to the path in their protocol.
        description: what is wrong with it.
    """

    code = Code.INVALID_ARGUMENT

    def __init__(self, field: str, description: str) -> None:
        super().__init__(f"{field}: {description}")
        self.field = field
        self.description = description


class Resource(StrEnum):
    """The resource that a limit counts."""

    SEQUENCES = "sequences"
    TOKENS = "tokens"


class RequestTooLargeError(ServeError):
    """A request that the engine could never accept. Front ends name the field to blame.

    Attributes:
        limit: the most that one request may use.
        requested: how much this request would use.
        resource: what ``limit`` counts.
        counts_new_tokens: whether ``requested`` includes tokens to generate.
    """

    code = Code.INVALID_ARGUMENT

    def __init__(
        self,
        description: str,
        *,
        limit: int,
        requested: int,
        resource: Resource,
        counts_new_tokens: bool = False,
    ) -> None:
        super().__init__(description)
        self.limit = limit
        self.requested = requested
        self.resource = resource
        self.counts_new_tokens = counts_new_tokens


class ModelNotFoundError(ServeError):
    code = Code.NOT_FOUND

    def __init__(self, model: str, available: list[str]) -> None:
        names = ", ".join(available) or "none"
        super().__init__(f"model {model!r} is not served here; served: {names}")


class BundleNotFoundError(ServeError):
    code = Code.NOT_FOUND

    def __init__(self, label: str) -> None:
        super().__init__(f"there is no bundle {label!r}")


class LoadError(ServeError):
    """A bundle that cannot be served; the message says why."""

    code = Code.FAILED_PRECONDITION


class UnauthenticatedError(ServeError):
    code = Code.UNAUTHENTICATED

    def __init__(self) -> None:
        super().__init__("a valid bearer token is needed")


class Limit(StrEnum):
    """The limit that was reached: a stable word for programs."""

    QUEUE_ROWS = "queue_rows"
    QUEUE_TOKENS = "queue_tokens"
    CLIENT_TOKENS = "client_tokens"  # per second
    THREADS = "threads"  # too many requests wait for tokenization
    DEADLINE = "deadline"  # the queue is longer than the caller's deadline
    SLOW_READER = "slow_reader"  # the caller does not read its stream


RETRY_SECONDS = 1.0
"""The retry delay if there is no better estimate."""


class OverloadedError(ServeError):
    """A limit is reached. The caller may retry after ``retry_seconds``."""

    code = Code.RESOURCE_EXHAUSTED

    def __init__(self, message: str, retry_seconds: float, limit: Limit) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds
        self.limit = limit


class DeadlineError(ServeError):
    code = Code.DEADLINE_EXCEEDED

    def __init__(self) -> None:
        super().__init__("the deadline passed before the request was done")


class ShuttingDownError(ServeError):
    code = Code.UNAVAILABLE

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class EngineStoppedError(ServeError):
    """The engine died, or stopped before the request was done. Another server may serve it."""

    code = Code.UNAVAILABLE

    def __init__(self) -> None:
        super().__init__("the engine stopped")


class InternalError(ServeError):
    """A fault of the server. The cause is in the log."""

    code = Code.INTERNAL

    def __init__(self, message: str = "the model run failed") -> None:
        super().__init__(message)


class StartupError(Exception):
    """The server cannot start as configured: a message for the operator."""
