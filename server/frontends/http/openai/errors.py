"""Formats errors as OpenAI does; vLLM's routes use the same format."""

from starlette.responses import Response

from server.errors import Code, ContextLengthError
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
# Clients shorten a conversation after this error: LangChain by the code, LiteLLM by these words.
_TOO_LONG = "context_length_exceeded"
_TOO_LONG_MESSAGE = "this model's maximum context length is exceeded"


def error_response(failure: Failure) -> Response:
    """``{"error": {"message", "type", "param", "code"}}``."""
    return json_response({"error": error_object(failure)})


def error_object(failure: Failure) -> dict[str, str | None]:
    """``{"message", "type", "param", "code"}``."""
    code = failure.error.code
    names_model = code == Code.NOT_FOUND and failure.names_model
    message, name = failure.message, _CODES.get(code, code.lower())
    if names_model:
        name = "model_not_found"
    elif isinstance(failure.error, ContextLengthError):
        message, name = f"{message}: {_TOO_LONG_MESSAGE}", _TOO_LONG
    return {
        "message": message,
        "type": _TYPES.get(code, "invalid_request_error"),
        "param": "model" if names_model else failure.field,
        "code": name,
    }
