"""Converts Ollama's messages and images to those of the service."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from server.bounds import MAX_IMAGES, MAX_MESSAGES, MAX_TOOLS, Size
from server.frontends.http.endpoint import Call
from server.frontends.http.images import Images
from server.frontends.http.openai.tools import json_text
from server.service.generation_request import ContentPart as Part
from server.service.generation_request import Message, ToolCall, json_object
from server.service.validation import check_arguments

_ID_DIGITS = 9  # the ids of Mistral's templates have as many characters


class SentFunction(msgspec.Struct, kw_only=True):
    """The function of a call, with its arguments as an object. ``index`` has no effect."""

    name: str
    arguments: dict[str, Any] | None = None


class SentCall(msgspec.Struct, kw_only=True):
    """A call in an earlier answer. Ollama's clients leave the id out."""

    function: SentFunction
    id: str | None = None


class OllamaMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn. ``tool_name`` tells whose result the content of a tool is."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[SentCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


async def image_files(
    messages: Sequence[OllamaMessage], call: Call[Any], field: str = ""
) -> Iterator[bytes]:
    """Decodes the images of all messages, in their order, and drops their base64.

    Args:
        messages: a conversation.
        call: the call that has it.
        field: the name of the images in the body; by default they are in its messages.

    Raises:
        InvalidArgumentError: there are too many messages or images, or one is too large or
            invalid base64; the error names it.
    """
    Size(MAX_MESSAGES).check_count("messages", messages)
    images: list[str] = []
    paths: list[str] = []
    for index, message in enumerate(messages):
        given, path = message.images or (), field or f"messages[{index}].images"
        Size(MAX_IMAGES).check_count(path, given)
        images += given
        paths += [f"{path}[{place}]" for place in range(len(given))]
    files: tuple[bytes, ...] = ()
    if images:
        files = await Images(images=images, field=field or "messages", path=paths).files(call)
    for message in messages:
        message.images = [""] * len(message.images or ())
    return iter(files)


def image_names(messages: Sequence[OllamaMessage]) -> dict[str, str]:
    """Ollama's names of images and of texts beside them, by OpenAI's paths, for errors."""
    names: dict[str, str] = {}
    for index, message in enumerate(messages):
        if message.images:
            path, count = f"messages[{index}]", len(message.images)
            for place in range(count):
                names[f"{path}.content[{place}].image_url"] = f"{path}.images[{place}]"
            names[f"{path}.content[{count}].text"] = f"{path}.content"
    return names


def service_messages(
    messages: Sequence[OllamaMessage], files: Iterator[bytes]
) -> tuple[Message, ...]:
    """Converts messages. Images come before the text of their message.

    Calls without an id get one, and results without one that of the call that they answer.

    Args:
        messages: with at most as many as the service takes.
        files: from :func:`image_files`.

    Raises:
        InvalidArgumentError: a tool call is malformed; the error names the field.
    """
    ids = _CallIds()
    converted = []
    for index, message in enumerate(messages):
        calls = _calls(message.tool_calls or (), f"messages[{index}].tool_calls", ids)
        parts = tuple(Part(image=next(files)) for _ in message.images or ())
        content = message.content or ""
        if parts and content:
            parts, content = (*parts, Part(text=content)), ""
        result = message.tool_call_id or ""
        if message.role == "tool" and not result:
            result = ids.answered(message.tool_name or "")
        converted.append(
            Message(message.role, content, calls, result, parts, message.thinking or "")
        )
    arguments = [call.arguments for message in converted for call in message.tool_calls]
    check_arguments("messages", arguments)
    return tuple(converted)


class _CallIds:
    """The ids of the calls of a conversation."""

    def __init__(self) -> None:
        self._count = 0
        self._open: dict[str, str] = {}  # names of the calls without a result, by id

    def add(self, id_: str, name: str) -> str:
        """Adds a call, and returns its id: a new one if ``id_`` is empty."""
        self._count += 1
        id_ = id_ or f"{self._count:0{_ID_DIGITS}}"
        self._open[id_] = name
        return id_

    def answered(self, name: str) -> str:
        """The id of the first call without a result, of the function ``name`` if it is given.

        Empty if there is none.
        """
        found = next((id_ for id_, given in self._open.items() if name in ("", given)), "")
        self._open.pop(found, None)
        return found


def _calls(calls: Sequence[SentCall], path: str, ids: _CallIds) -> tuple[ToolCall, ...]:
    Size(MAX_TOOLS).check_count(path, calls)
    converted = []
    for index, call in enumerate(calls):
        place, function = f"{path}[{index}].function.arguments", call.function
        arguments = json_text(place, function.arguments)
        json_object(arguments, place)
        id_ = ids.add(call.id or "", function.name)
        converted.append(ToolCall(id_, function.name, arguments))
    return tuple(converted)
