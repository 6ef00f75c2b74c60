"""Responses as server-sent events."""

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from server.frontends.http.failures import Failure

DONE = b"data: [DONE]\n\n"
"""The event that ends OpenAI's streams."""
_encode = msgspec.json.Encoder().encode


def event(value: Any, name: str | None = None) -> bytes:
    """One event whose data is ``value`` in JSON, on one line."""
    prefix = b"data: " if name is None else b"event: " + name.encode() + b"\ndata: "
    return b"".join((prefix, _encode(value), b"\n\n"))


@dataclass(frozen=True, slots=True)
class EventStream:
    """A streamed response. Each item is the bytes of one or more events.

    The first item is awaited before the status is sent, so that a rejected request gets the status
    of its error. A later error is sent as an event, made by ``error_event``; by default its data is
    the body of the protocol's error. If the client disconnects or does not read, ``items`` is
    closed.
    """

    items: AsyncGenerator[bytes, None]
    headers: Mapping[str, str] = field(default_factory=dict)
    media_type: str = "text/event-stream; charset=utf-8"
    error_event: Callable[[Failure], bytes] | None = None
