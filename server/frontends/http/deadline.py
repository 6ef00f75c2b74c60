"""Deadlines of HTTP calls, from headers that clients and proxies already send."""

import math
from contextlib import suppress

from starlette.datastructures import Headers

from server.errors import InvalidArgumentError

# Timeout headers, with their units in seconds. Envoy sends the second one to its upstreams.
_TIMEOUTS = (
    ("x-request-timeout", 1.0),
    ("x-envoy-expected-rq-timeout-ms", 1e-3),
)
# OpenAI's clients send their read timeout: the longest pause between two parts of a response.
_READ_TIMEOUT = "x-stainless-read-timeout"
_MAX_SECONDS = 86400.0


def deadline_of(headers: Headers, started: float, *, is_stream: bool) -> float | None:
    """The deadline in seconds of ``time.monotonic``; ``None`` if the request sets none.

    Args:
        headers: the request's headers.
        started: when the request arrived, in seconds of ``time.monotonic``.
        is_stream: whether the response is a stream; the read timeout does not apply to it.

    Raises:
        InvalidArgumentError: the value of a timeout header is not a positive number.
    """
    deadlines = [
        started + _seconds(name, headers[name], unit) for name, unit in _TIMEOUTS if name in headers
    ]
    if not is_stream and _READ_TIMEOUT in headers:
        with suppress(InvalidArgumentError):  # clients without a timeout send text
            deadlines.append(started + _seconds(_READ_TIMEOUT, headers[_READ_TIMEOUT], 1.0))
    return min(deadlines, default=None)


def _seconds(name: str, text: str, unit: float) -> float:
    try:
        seconds = float(text) * unit
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise InvalidArgumentError(name, "is not a positive number")
    return min(seconds, _MAX_SECONDS)
