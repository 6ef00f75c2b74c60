"""The closed set of errors that a caller can receive.

``server.rpc.status`` maps each to its gRPC status, in one table.
"""


class ServeError(Exception):
    """A request that fails. ``str(error)`` is sent to the client: no paths, no internals."""


class InvalidArgumentError(ServeError):
    """A bad value in a request. ``field`` is its path, such as ``inputs[2]``."""

    def __init__(self, field: str, description: str) -> None:
        super().__init__(f"{field}: {description}")
        self.field = field
        self.description = description


class ModelNotFoundError(ServeError):
    def __init__(self, model: str, available: list[str]) -> None:
        names = ", ".join(available) or "none"
        super().__init__(f"model {model!r} is not served here; served: {names}")


class OverloadedError(ServeError):
    """The queue is full. Worth another try after ``retry_seconds``."""

    def __init__(self, model: str, retry_seconds: float) -> None:
        super().__init__(f"the queue of model {model!r} is full")
        self.retry_seconds = retry_seconds


class DeadlineError(ServeError):
    def __init__(self) -> None:
        super().__init__("the deadline passed before the request was done")


class ShuttingDownError(ServeError):
    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class InternalError(ServeError):
    """A fault of ours. The cause is in the log."""

    def __init__(self, message: str = "the model run failed") -> None:
        super().__init__(message)


class StartupError(Exception):
    """The server cannot start as configured: a message for the operator."""
