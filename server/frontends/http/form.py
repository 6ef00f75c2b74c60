"""Decodes HTML forms, URL-encoded or multipart, into structs."""

from collections.abc import Collection
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.datastructures import Headers

from server.errors import InvalidArgumentError
from server.frontends.http.body import named_error
from server.frontends.http.failures import MalformedBodyError
from server.frontends.http.multipart import Part, split_parts

_URL_ENCODED, _MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
FORM_TYPES = frozenset({_URL_ENCODED, _MULTIPART})
MAX_FIELDS = 1000
MAX_UPLOAD_FIELDS = 64
# URL-encoded fields are decoded in pieces: each escape takes 50 bytes meanwhile.
_PIECE_BYTES = 1 << 16
# Maximum bytes of all fields of an upload form that are not files.
MAX_UPLOAD_TEXT_BYTES = 64 << 10


def decode_form(data: bytes, headers: Headers, kind: type[Any]) -> Any:
    """Decodes a form into a ``kind``; a field that is given several times becomes a list.

    Raises:
        InvalidArgumentError: the form is malformed, or has too many fields or a file, or a field
            is invalid; the error names the field.
    """
    fields: dict[str, Any] = {}
    for name, value in _fields(data, headers):
        earlier = fields.get(name)
        if earlier is None:
            fields[name] = value
        else:
            fields[name] = [*(earlier if isinstance(earlier, list) else [earlier]), value]
    return _converted(fields, kind)


def decode_upload(
    data: bytes,
    headers: Headers,
    kind: type[Any],
    *,
    files: Collection[str],
    lists: Collection[str] = (),
) -> Any:
    """Decodes a multipart form with files into a ``kind``.

    Args:
        data: the body.
        headers: the request's headers.
        kind: the struct.
        files: names of the fields that are files, decoded as ``bytes``.
        lists: names of the fields that may be given several times, also as ``name[]``.

    Raises:
        InvalidArgumentError: the form is malformed, or a field is invalid; the error names it.
    """
    if not _is_multipart(headers):
        raise MalformedBodyError("body", "is not multipart/form-data")
    fields: dict[str, Any] = {}
    num_text_bytes = 0
    for part in _parts(data, headers, MAX_UPLOAD_FIELDS):
        name = part.name.removesuffix("[]")
        if part.is_file and name not in files:
            raise MalformedBodyError(name, "is a file")
        if name in files and not part.is_file:
            raise MalformedBodyError(name, "is no file: it has no filename")
        if not part.is_file:
            num_text_bytes += len(part.data)
            if num_text_bytes > MAX_UPLOAD_TEXT_BYTES:
                raise MalformedBodyError(name, f"is beyond {MAX_UPLOAD_TEXT_BYTES} bytes of text")
        value = part.data if part.is_file else _text(part)
        if name in lists:
            fields.setdefault(name, []).append(value)
        elif name in fields:
            raise MalformedBodyError(name, "is given twice")
        else:
            fields[name] = value
    return _converted(fields, kind)


def _converted(fields: dict[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise named_error(str(error)) from None


def _fields(data: bytes, headers: Headers) -> list[tuple[str, str]]:
    if not _is_multipart(headers):
        return _encoded_fields(data)
    parts = _parts(data, headers, MAX_FIELDS)
    for part in parts:
        if part.is_file:
            raise InvalidArgumentError(part.name, "is a file")
    return [(part.name, _text(part)) for part in parts]


def _encoded_fields(data: bytes) -> list[tuple[str, str]]:
    """The fields of a URL-encoded form, each decoded in pieces: a body may be one field."""
    if data.count(b"&") >= MAX_FIELDS:
        raise InvalidArgumentError("body", f"is not a form: it has more than {MAX_FIELDS} fields")
    pairs = [pair.partition(b"=") for pair in data.split(b"&") if pair]
    try:
        return [(_unquoted(name), _unquoted(value)) for name, _, value in pairs]
    except ValueError as error:
        raise InvalidArgumentError("body", f"is not a form: {error}") from None


def _unquoted(text: bytes) -> str:
    """``text`` with spaces for ``+`` and characters for ``%41``. Raises ``ValueError``."""
    parts, start = [], 0
    while start < len(text):
        stop = start + _PIECE_BYTES
        escape = text.rfind(b"%", stop - 2, stop) if stop < len(text) else -1
        stop = stop if escape < 0 else escape  # which may continue in the next piece
        parts.append(unquote_to_bytes(text[start:stop].replace(b"+", b" ")))
        start = stop
    return b"".join(parts).decode()


def media_type_of(headers: Headers) -> str:
    """The type of a body, in lower case; empty if it is not given."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def with_query(query: bytes, data: bytes, headers: Headers) -> tuple[bytes, Headers]:
    """A body and its headers with the parameters of an address before its own.

    Bodies of other types than URL-encoded forms are kept, as the parameters are in them.
    """
    is_form = media_type_of(headers) == _URL_ENCODED
    if not query or (data and not is_form):
        return data, headers
    if is_form:
        return b"&".join((query, data)), headers
    return query, Headers({"content-type": _URL_ENCODED})


def _is_multipart(headers: Headers) -> bool:
    return media_type_of(headers) == _MULTIPART


def _parts(data: bytes, headers: Headers, max_parts: int) -> list[Part]:
    try:
        return split_parts(data, headers["content-type"], max_parts)
    except ValueError as error:
        raise InvalidArgumentError("body", f"is not a form: {error}") from None


def _text(part: Part) -> str:
    try:
        return part.data.decode()
    except ValueError:
        raise MalformedBodyError(part.name, "is not UTF-8") from None
