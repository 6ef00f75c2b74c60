"""Receives request bodies, within limits of size and time, and decodes them into structs."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive

from server.errors import RETRY_SECONDS, Limit, OverloadedError
from server.frontends.http.failures import BodyTooLargeError, MalformedBodyError

T = TypeVar("T")
# msgspec's error messages, such as "Expected `int`, got `str` - at `$.messages[0].content`".
_MESSAGE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?")
_NAMED = re.compile(r"Object (?P<what>missing required|contains unknown) field `(?P<name>.*)`")
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


def json_decoder(kind: type[T]) -> Callable[[bytes], T]:
    """Returns a function that decodes JSON into ``kind``, a msgspec struct.

    The struct determines whether unknown fields are ignored or rejected. For invalid JSON, the
    function raises a ``MalformedBodyError`` that names the field.
    """
    decoder = msgspec.json.Decoder(kind)

    def decode(data: bytes) -> T:
        try:
            return decoder.decode(data)
        except msgspec.ValidationError as error:
            raise named_error(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise MalformedBodyError("body", f"is not JSON: {error}") from None
        except RecursionError:
            raise MalformedBodyError("body", "is nested too deeply") from None

    return decode


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
