"""Receives request bodies, within limits of size and time, and decodes them into structs."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive

from server.errors import RETRY_SECONDS, Limit, OverloadedError
from server.frontends.http.failures import (
    BodyTooLargeError,
    MalformedBodyError,
    UnsupportedEncodingError,
)
from server.frontends.http.json_size import MAX_VALUES, has_too_many_values

T = TypeVar("T")
# msgspec's error messages, such as "Expected `int`, got `str` - at `$.messages[0].content`".
_MESSAGE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?")
_NAMED = re.compile(r"Object (?P<what>missing required|contains unknown) field `(?P<name>.*)`")
# Fields that are kept as they were sent are cut here; longer ones count as not short.
MAX_RAW_BYTES = 256
NOTHING = msgspec.Raw()
"""The default of fields that are not decoded."""
_NAMED_MESSAGES = {"missing required": "is required", "contains unknown": "is not supported"}


class ClientGoneError(Exception):
    """The client closed the connection before the body was complete."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """The maximum size of one body in bytes, and the seconds within which it must arrive."""

    max_bytes: int
    seconds: float


class BodyBudget:
    """Limits the bytes of all bodies that are being received."""

    def __init__(self, max_bytes: int) -> None:
        self._free_bytes = max_bytes

    def take(self, num_bytes: int) -> None:
        """Reserves bytes. Raises ``OverloadedError`` if too many are buffered."""
        if num_bytes > self._free_bytes:
            raise OverloadedError(
                "too many request bodies are being received", RETRY_SECONDS, Limit.THREADS
            )
        self._free_bytes -= num_bytes

    def give_back(self, num_bytes: int) -> None:
        self._free_bytes += num_bytes


def check_length(headers: Headers, max_bytes: int) -> None:
    """Raises ``BodyTooLargeError`` if a body is announced that has more than ``max_bytes``."""
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise BodyTooLargeError(max_bytes)


def check_encoding(headers: Headers) -> None:
    """Raises ``UnsupportedEncodingError`` if the body is compressed."""
    for encodings in headers.getlist("content-encoding"):
        if encodings.strip().lower() not in ("", "identity"):
            raise UnsupportedEncodingError


async def read_body(receive: Receive, max_bytes: int, budget: BodyBudget) -> bytes:
    """Reads the whole body of a request.

    Raises:
        BodyTooLargeError: the body has more than ``max_bytes``.
        OverloadedError: ``budget`` is used up.
        ClientGoneError: the client closed the connection.
    """
    parts: list[bytes] = []
    size = 0
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            part = message.get("body", b"")
            more = message.get("more_body", False)
            if not more and not parts:
                if len(part) > max_bytes:
                    raise BodyTooLargeError(max_bytes)
                return bytes(part)
            if size + len(part) > max_bytes:
                raise BodyTooLargeError(max_bytes)
            budget.take(len(part))
            size += len(part)
            parts.append(part)
            if not more:
                return b"".join(parts)
    finally:
        budget.give_back(size)


def json_decoder(
    kind: type[T], max_values: int | None = MAX_VALUES, *, strict: bool = True
) -> Callable[[bytes], T]:
    """Returns a function that decodes JSON into ``kind``, a msgspec struct.

    The struct determines whether unknown fields are ignored or rejected. For invalid JSON, the
    function raises a ``MalformedBodyError`` that names the field.

    Args:
        kind: the struct. Its fields of type ``msgspec.Raw`` have no effect, or only request what is
            rejected: of each, at most :data:`MAX_RAW_BYTES` and one byte are kept.
        max_values: the maximum number of values; None if the caller limits the bytes.
        strict: whether numbers in strings are rejected.
    """
    decoder = msgspec.json.Decoder(kind, strict=strict)
    raw_fields = _raw_fields(kind)

    def decode(data: bytes) -> T:
        if max_values is not None and has_too_many_values(data, max_values):
            raise MalformedBodyError("body", f"has more than {max_values} values")
        try:
            body = decoder.decode(data)
        except msgspec.ValidationError as error:
            raise named_error(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise MalformedBodyError("body", f"is not JSON: {error}") from None
        except RecursionError:
            raise MalformedBodyError("body", "is nested too deeply") from None
        for name in raw_fields:
            setattr(body, name, _cut(getattr(body, name)))
        return body

    return decode


def _raw_fields(kind: Any) -> tuple[str, ...]:
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return ()
    return tuple(one.name for one in msgspec.structs.fields(kind) if one.type is msgspec.Raw)


def _cut(raw: msgspec.Raw) -> msgspec.Raw:
    """The beginning of ``raw``, which would keep the whole body."""
    return msgspec.Raw(bytes(memoryview(raw)[: MAX_RAW_BYTES + 1]))


def named_error(message: str) -> MalformedBodyError:
    """Converts msgspec's error message to an error that names the field."""
    found = _MESSAGE.fullmatch(message)
    what, path = (message, "") if found is None else (found["what"], found["path"] or "")
    field = _NAMED.fullmatch(what)
    if field is not None:
        path = f"{path}.{field['name']}" if path else field["name"]
        return MalformedBodyError(path, _NAMED_MESSAGES[field["what"]])
    what = what.replace("`", "")
    return MalformedBodyError(path or "body", what[:1].lower() + what[1:])
