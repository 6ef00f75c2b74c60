"""Errors as HTTP statuses and headers. Each protocol adds a body of its own shape."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from server.errors import (
    Code,
    InvalidArgumentError,
    ModelNotFoundError,
    OverloadedError,
    ServeError,
)
from server.frontends.http.origins import ForeignOriginError

STATUSES = {
    Code.OK: 200,
    Code.CANCELLED: 499,  # as nginx: the client closed the connection
    Code.INVALID_ARGUMENT: 400,
    Code.NOT_FOUND: 404,
    Code.FAILED_PRECONDITION: 400,
    Code.UNAUTHENTICATED: 401,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.DEADLINE_EXCEEDED: 504,
    Code.UNAVAILABLE: 503,
    Code.INTERNAL: 500,
}
_MAX_LENGTH = "max_new_tokens"  # the option that errors of other fields mention
# Routes of text-embeddings-inference that are at the root only with --tei-model.
TEI_PATHS = {
    *("/embed", "/embed_all", "/embed_sparse", "/predict", "/similarity", "/decode", "/info")
}
_PART = re.compile(r"\.parts(\[\d+\])(\.image|\.text|$)")
_PART_NAMES = {".image": ".image_url", ".text": ".text", "": ""}
_FIRST_NAME = re.compile(r"\w+")


class BodyTooLargeError(InvalidArgumentError):
    """A body over the limit: status 413."""

    def __init__(self, max_bytes: int, hint: str = "") -> None:
        super().__init__("body", f"has more than {max_bytes} bytes{hint}")


class MalformedBodyError(InvalidArgumentError):
    """A body that is not as the route's struct says: a field is missing or of another type.

    Unlike other errors, it has the path in the body already.
    """


class UnsupportedEncodingError(MalformedBodyError):
    """A compressed body: status 415 (RFC 9110, 15.5.16)."""

    def __init__(self) -> None:
        super().__init__("content-encoding", "compressed bodies are not supported")


class RouteNotFoundError(ServeError):
    """A path without a route."""

    code = Code.NOT_FOUND

    def __init__(self, path: str) -> None:
        reason = f"there is nothing at {path}"
        if path in TEI_PATHS:
            reason += f": use /MODEL{path}, or start the server with --tei-model"
        super().__init__(reason)


class MethodNotAllowedError(ServeError):
    """A route that does not answer this method: status 405."""

    code = Code.INVALID_ARGUMENT

    def __init__(self, method: str) -> None:
        super().__init__(f"this address does not answer {method}")


class UnsupportedCallError(ServeError):
    """A call of a protocol that this server does not answer, as ``reason`` says: status 501."""

    code = Code.FAILED_PRECONDITION

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


_STATUSES_OF_TYPES = {
    BodyTooLargeError: 413,
    UnsupportedEncodingError: 415,
    MethodNotAllowedError: 405,
    UnsupportedCallError: 501,
    ForeignOriginError: 403,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a protocol sends it.

    ``field``: the invalid field by its path in the body; ``None`` if the error names none.
    ``message``: starts with the field.
    """

    error: ServeError
    status: int
    message: str
    field: str | None = None

    @property
    def names_model(self) -> bool:
        """Whether the request names a model that is not served."""
        return isinstance(self.error, ModelNotFoundError)

    @property
    def headers(self) -> dict[str, str]:
        """Headers that any client may read: whether and when to try again."""
        error = self.error
        if isinstance(error, OverloadedError):
            milliseconds = max(round(error.retry_seconds * 1000), 1)
            return {
                "retry-after": str(math.ceil(milliseconds / 1000)),
                "retry-after-ms": str(milliseconds),
            }
        if error.code == Code.UNAUTHENTICATED:
            return {"www-authenticate": "Bearer"}
        if error.code == Code.DEADLINE_EXCEEDED:
            return {"x-should-retry": "false"}  # read by OpenAI's clients
        if isinstance(error, UnsupportedEncodingError):
            return {"accept-encoding": "identity"}
        return {}


def failure_of(error: ServeError, names: Mapping[str, str] | None = None) -> Failure:
    """Translates an error.

    Args:
        error: the error.
        names: the names of the service's fields in the protocol, where they differ; also of
            paths, such as ``grammar.regex``.
    """
    status = _STATUSES_OF_TYPES.get(type(error)) or STATUSES[error.code]
    names = {} if names is None or isinstance(error, MalformedBodyError) else names
    if not isinstance(error, InvalidArgumentError):
        return Failure(error, status, str(error))
    field = wire_path(error.field, names)
    description = error.description.replace(_MAX_LENGTH, names.get(_MAX_LENGTH, _MAX_LENGTH))
    return Failure(error, status, f"{field}: {description}", field)


def wire_path(path: str, names: Mapping[str, str]) -> str:
    """The path of a field, or its first name, as the protocol spells it.

    Parts of messages have the names of OpenAI's protocol, the only one with messages of parts.
    """
    path = _PART.sub(lambda part: f".content{part[1]}{_PART_NAMES[part[2]]}", path)
    if path in names:
        return names[path]
    first = _FIRST_NAME.match(path)
    if first is None or first[0] not in names:
        return path
    return names[first[0]] + path[first.end() :]
