"""Formats errors as Anthropic does. Messages start with the invalid field."""

from typing import Any

from starlette.responses import Response

from server.errors import ContextLengthError
from server.frontends.http.endpoint import json_response
from server.frontends.http.event_stream import event
from server.frontends.http.exchange import ID_HEADER
from server.frontends.http.failures import Failure

VERSION_HEADER = "anthropic-version"
"""Anthropic's clients send this header with every request."""
ID_HEADERS = (ID_HEADER, "request-id")
"""The headers with the id of a request; Anthropic's clients read the second one."""
# Anthropic's error types, by status.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# Clients shorten a conversation after an error with these words.
_TOO_LONG = "prompt is too long"


def error_response(failure: Failure) -> Response:
    """``{"type": "error", "error": {"type", "message"}}``."""
    return json_response(_body(failure))


def error_event(failure: Failure) -> bytes:
    """The event of an error, which ends a stream."""
    return event(_body(failure), "error")


def _body(failure: Failure) -> dict[str, Any]:
    message = failure.message
    if isinstance(failure.error, ContextLengthError):
        message = f"{message}: {_TOO_LONG}"
    kind = _TYPES.get(failure.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}
