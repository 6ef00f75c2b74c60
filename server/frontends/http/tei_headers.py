"""Adds the headers of text-embeddings-inference's responses."""

from typing import Any

from starlette.responses import Response

from server.frontends.http.endpoint import json_response
from server.service.usage import Timing, Usage


def _headers(usage: Usage, timing: Timing) -> dict[str, str]:
    """TEI's headers; times are in milliseconds."""

    def milliseconds(seconds: float) -> str:
        return str(int(seconds * 1000))

    return {
        "x-compute-type": "cpu",
        "x-compute-time": milliseconds(timing.total_seconds),
        "x-compute-tokens": str(usage.input_tokens),
        "x-total-time": milliseconds(timing.total_seconds),
        "x-tokenization-time": milliseconds(timing.tokenize_seconds),
        "x-queue-time": milliseconds(timing.queue_seconds),
        "x-inference-time": milliseconds(timing.prefill_seconds),
    }


def answer_with(value: Any, result: Any) -> Response:
    """A response with ``value`` as JSON, and the token counts and times of ``result``."""
    return json_response(value, headers=_headers(result.usage, result.timing))
