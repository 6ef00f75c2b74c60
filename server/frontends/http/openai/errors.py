"""Formats errors as OpenAI does; vLLM's routes use the same format."""

from starlette.responses import Response

from server.errors import Code
from server.frontends.http.endpoint import json_response
from server.frontends.http.failures import Failure

# OpenAI's error types, by code.
_TYPES = {
    Code.UNAUTHENTICATED: "authentication_error",
    Code.RESOURCE_EXHAUSTED: "rate_limit_error",
    Code.DEADLINE_EXCEEDED: "timeout_error",
    Code.UNAVAILABLE: "server_error",
    Code.INTERNAL: "server_error",
    Code.CANCELLED: "server_error",
}
# OpenAI's error codes, by code; the others are the names of ``google.rpc`` in lower case.
_CODES = {
    Code.UNAUTHENTICATED: "invalid_api_key",
    Code.RESOURCE_EXHAUSTED: "rate_limit_exceeded",
}


def error_response(failure: Failure) -> Response:
    """``{"error": {"message", "type", "param", "code"}}``."""
    code = failure.error.code
    names_model = code == Code.NOT_FOUND and failure.names_model
    return json_response(
        {
            "error": {
                "message": failure.message,
                "type": _TYPES.get(code, "invalid_request_error"),
                "param": "model" if names_model else failure.field,
                "code": "model_not_found" if names_model else _CODES.get(code, code.lower()),
            }
        }
    )
