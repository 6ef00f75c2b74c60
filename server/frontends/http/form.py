"""Bodies of HTML forms, URL-encoded or multipart, as structs."""

import io
import logging
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from python_multipart import parse_form
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File
from starlette.datastructures import Headers

from server.errors import InvalidArgumentError
from server.frontends.http.body import named_error

MAX_FIELDS = 1000
# What is wrong with a form is told to the client, not to the log.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


def decode_form(data: bytes, headers: Headers, kind: type[Any]) -> Any:
    """The fields of a form as a ``kind``; a field that is given several times is a list.

    Raises:
        InvalidArgumentError: the form is malformed, has too many fields or a file, or names the
            field that is invalid.
    """
    fields: dict[str, Any] = {}
    for count, (name, value) in enumerate(_fields(data, headers), 1):
        if count > MAX_FIELDS:
            raise InvalidArgumentError("body", f"has more than {MAX_FIELDS} fields")
        earlier = fields.get(name)
        if earlier is None:
            fields[name] = value
        else:
            fields[name] = [*(earlier if isinstance(earlier, list) else [earlier]), value]
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise named_error(str(error)) from None


def _fields(data: bytes, headers: Headers) -> list[tuple[str, str]]:
    try:
        if headers.get("content-type", "").lower().startswith("multipart/"):
            return _multipart(data, headers)
        return parse_qsl(
            data.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
        )
    except (ValueError, FormParserError) as error:
        raise InvalidArgumentError("body", f"is not a form: {error}") from None


def _multipart(data: bytes, headers: Headers) -> list[tuple[str, str]]:
    fields: list[tuple[str, str]] = []

    def add(field: Field) -> None:
        if len(fields) >= MAX_FIELDS:
            raise InvalidArgumentError("body", f"has more than {MAX_FIELDS} fields")
        fields.append(((field.field_name or b"").decode(), (field.value or b"").decode()))

    def refuse(file: File) -> None:
        raise InvalidArgumentError((file.field_name or b"").decode(), "is a file")

    parse_form(
        {"Content-Type": headers["content-type"].encode("latin-1")}, io.BytesIO(data), add, refuse
    )
    return fields
