"""The closed set of errors that a caller can receive.

``server.frontends.grpc.status`` maps each to its gRPC status, in one table.
"""

from enum import StrEnum


class ServeError(Exception):
    """A request that fails. ``str(error)`` is sent to the client: no paths, no internals."""


class InvalidArgumentError(ServeError):
    """A bad value in a request. ``field`` is its path, such as ``inputs[2]``."""

    def __init__(self, field: str, description: str) -> None:
        super().__init__(f"{field}: {description}")
        self.field = field
        self.description = description


class RequestTooLargeError(ServeError):
    """A request that the engine could never accept. Front ends name the field to blame.

    Attributes:
        limit: the most that one request may ask for.
        asked: what this request asks for, in the same unit.
        resource: what ``limit`` counts.
        counts_new_tokens: whether ``asked`` includes tokens to generate.
    """

    def __init__(
        self,
        description: str,
        *,
        limit: int,
        asked: int,
        resource: "Resource",
        counts_new_tokens: bool = False,
    ) -> None:
        super().__init__(description)
        self.limit = limit
        self.asked = asked
        self.resource = resource
        self.counts_new_tokens = counts_new_tokens


class Resource(StrEnum):
    """What a request takes from the engine."""

    SEQUENCES = "sequences"
    TOKENS = "tokens"


class ModelNotFoundError(ServeError):
    def __init__(self, model: str, available: list[str]) -> None:
        names = ", ".join(available) or "none"
        super().__init__(f"model {model!r} is not served here; served: {names}")


class BundleNotFoundError(ServeError):
    def __init__(self, label: str) -> None:
        super().__init__(f"there is no bundle {label!r}")


class LoadError(ServeError):
    """A bundle that cannot be served; the message says why."""


class UnauthenticatedError(ServeError):
    def __init__(self) -> None:
        super().__init__("a valid bearer token is needed")


class Limit(StrEnum):
    """What was reached: a stable word for programs."""

    QUEUE_ROWS = "queue_rows"
    QUEUE_TOKENS = "queue_tokens"
    CLIENT_TOKENS = "client_tokens"  # per second
    THREADS = "threads"  # too much waits to be tokenized
    DEADLINE = "deadline"  # the queue is longer than the caller waits
    SLOW_READER = "slow_reader"  # too much waits to be read by the caller


RETRY_SECONDS = 1.0
"""When another try is worth it, where nothing better is known."""


class OverloadedError(ServeError):
    """There is no room now. Worth another try after ``retry_seconds``."""

    def __init__(self, message: str, retry_seconds: float, limit: Limit) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds
        self.limit = limit


class DeadlineError(ServeError):
    def __init__(self) -> None:
        super().__init__("the deadline passed before the request was done")


class ShuttingDownError(ServeError):
    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class EngineStoppedError(ServeError):
    """The engine died, or was stopped before the request was done. Another server may do it."""

    def __init__(self) -> None:
        super().__init__("the engine stopped")


class InternalError(ServeError):
    """A fault of ours. The cause is in the log."""

    def __init__(self, message: str = "the model run failed") -> None:
        super().__init__(message)


class StartupError(Exception):
    """The server cannot start as configured: a message for the operator."""
