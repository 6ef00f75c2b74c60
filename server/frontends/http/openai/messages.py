"""Converts OpenAI's messages to those of the service."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from server.bounds import MAX_MESSAGES, Size
from server.errors import InvalidArgumentError
from server.frontends.http.body import NOTHING
from server.frontends.http.endpoint import Call
from server.frontends.http.images import ImageAddress, Images
from server.frontends.http.openai.options import check_neutral
from server.frontends.http.openai.tools import SentToolCall, sent_calls
from server.printable import quoted
from server.service.generation_request import ContentPart as Part
from server.service.generation_request import Message
from server.service.validation import check_arguments

_ROLES = {"developer": "system"}
_TEXT_TYPES = ("text", "input_text", "output_text")
_IMAGE_TYPES = ("image_url", "input_image")


class ContentPart(msgspec.Struct, kw_only=True):
    """A part of a message: a text or an image. OpenAI's ``detail`` of images is ignored.

    ``image_url`` is an object in ``/v1/chat/completions``, and a text in ``/v1/responses``.
    """

    type: str
    text: str | None = None
    image_url: ImageAddress | str | None = None


class ChatMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn. Fields after ``content`` occur when clients send earlier answers back."""

    role: str
    content: str | list[ContentPart] | None = None
    type: str | None = None
    id: msgspec.Raw = NOTHING
    name: str | None = None
    status: msgspec.Raw = NOTHING
    phase: msgspec.Raw = NOTHING
    refusal: msgspec.Raw = NOTHING
    annotations: msgspec.Raw = NOTHING
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[SentToolCall] | None = None
    tool_call_id: str | None = None
    function_call: msgspec.Raw = NOTHING
    audio: msgspec.Raw = NOTHING


Files = Mapping[str, bytes] | None
"""The files of images, by the path of their part. None where images are not supported."""


async def image_files(
    messages: Sequence[ChatMessage], call: Call[Any], field: str = "messages"
) -> Mapping[str, bytes]:
    """Decodes the files of all images in messages. Their number and sizes are checked first.

    Raises:
        InvalidArgumentError: there are too many images, or one is too large, invalid base64, or
            another URL; the error names it.
    """
    Size(MAX_MESSAGES).check_count(field, messages)
    found: dict[str, str] = {}
    for index, message in enumerate(messages):
        for place, part in enumerate(_parts(message.content)):
            if part.type in _IMAGE_TYPES:
                path = f"{field}[{index}].content[{place}]"
                found[path] = _address(part, path)
    if not found:
        return {}
    addresses = [f"{path}.image_url" for path in found]
    files = await Images(images=list(found.values()), field=field, path=addresses).files(call)
    return dict(zip(found, files, strict=True))


def service_messages(
    messages: Sequence[ChatMessage], files: Files = None, field: str = "messages"
) -> tuple[Message, ...]:
    """Converts messages: the role ``developer`` becomes ``system``, and text parts are joined.

    Args:
        messages: with at most as many as the service takes.
        files: from :func:`image_files`; None rejects images.
        field: their name in the body.

    Raises:
        InvalidArgumentError: there are no messages or too many, a part is neither a text nor an
            image, or a tool call is malformed; the error names the field.
    """
    Size(MAX_MESSAGES).check_count(field, messages)
    if not messages:
        raise InvalidArgumentError(field, "must not be empty")
    calls = [call for message in messages for call in message.tool_calls or ()]
    check_arguments(field, [call.function.arguments for call in calls])
    return tuple(
        service_message(message, files, f"{field}[{index}]")
        for index, message in enumerate(messages)
    )


def service_message(message: ChatMessage, files: Files, path: str) -> Message:
    """Converts the message at ``path``, as :func:`service_messages`."""
    if message.type not in (None, "message"):
        raise InvalidArgumentError(f"{path}.type", f"{quoted(message.type)} is not supported")
    try:
        check_neutral(message, function_call=(), audio=())
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}.{error.field}", error.description) from None
    role = _ROLES.get(message.role, message.role)
    calls = sent_calls(message.tool_calls or (), f"{path}.tool_calls")
    place, content = f"{path}.content", ""
    parts: tuple[Part, ...] = ()
    if files is not None and any(part.type in _IMAGE_TYPES for part in _parts(message.content)):
        parts = _service_parts(message.content, files, place)
    else:
        content = text_of(message.content, place)
    reasoning = message.reasoning_content or message.reasoning or ""
    return Message(role, content, calls, message.tool_call_id or "", parts, reasoning)


def _parts(content: str | list[ContentPart] | None) -> Sequence[ContentPart]:
    return content if isinstance(content, list) else ()


def _address(part: ContentPart, path: str) -> str:
    """The address of an image part."""
    address = part.image_url.url if isinstance(part.image_url, ImageAddress) else part.image_url
    if address is None:
        raise InvalidArgumentError(f"{path}.image_url", "is required")
    return address


def _service_parts(
    content: str | list[ContentPart] | None, files: Mapping[str, bytes], path: str
) -> tuple[Part, ...]:
    """Converts the parts of a content with images."""
    return tuple(
        Part(image=files[f"{path}[{index}]"])
        if part.type in _IMAGE_TYPES
        else Part(text=text_of([part], path, index))
        for index, part in enumerate(_parts(content))
    )


def text_of(
    content: str | list[ContentPart] | None,
    path: str,
    first: int = 0,
    types: Sequence[str] = _TEXT_TYPES,
) -> str:
    """Joins the text parts of a content. Raises ``InvalidArgumentError`` for other parts.

    Args:
        first: the index of the first part, for errors.
        types: those of texts.
    """
    if content is None or isinstance(content, str):
        return content or ""
    for index, part in enumerate(content, first):
        if part.type not in types:
            raise InvalidArgumentError(
                f"{path}[{index}].type", f"{quoted(part.type)} is not supported, only text"
            )
    return "".join(part.text or "" for part in content)
