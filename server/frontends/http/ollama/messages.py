"""Converts Ollama's messages and images to those of the service."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from server.bounds import MAX_ARGUMENTS_BYTES, MAX_IMAGES, MAX_MESSAGES, MAX_TOOLS, Size
from server.frontends.http.endpoint import Call
from server.frontends.http.images import Images
from server.frontends.http.openai.tools import json_text
from server.service.generation_request import ContentPart as Part
from server.service.generation_request import Message, ToolCall
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
    calls = _Calls()
    converted = []
    for index, message in enumerate(messages):
        called = calls.add(message.tool_calls or (), f"messages[{index}].tool_calls")
        parts = tuple(Part(image=next(files)) for _ in message.images or ())
        content = message.content or ""
        if parts and content:
            parts, content = (*parts, Part(text=content)), ""
        result = message.tool_call_id or ""
        if message.role == "tool":
            result = calls.answer(result, message.tool_name or "")
        converted.append(
            Message(message.role, content, called, result, parts, message.thinking or "")
        )
    return tuple(converted)


class _Calls:
    """Converts the calls of a conversation, and finds those that results belong to."""

    def __init__(self) -> None:
        self._arguments: list[str] = []
        self._num_characters = 0  # of the arguments
        self._open: set[str] = set()  # ids of calls without a result
        # All ids in their order, by the name of the function, and by "" of all functions.
        self._ids: dict[str, deque[str]] = {"": deque()}

    def add(self, sent: Sequence[SentCall], path: str) -> tuple[ToolCall, ...]:
        """Converts the calls of the next message."""
        Size(MAX_TOOLS).check_count(path, sent)
        converted = []
        for index, call in enumerate(sent):
            function = call.function
            arguments = json_text(f"{path}[{index}].function.arguments", function.arguments)
            self._arguments.append(arguments)
            self._num_characters += len(arguments)
            if self._num_characters > MAX_ARGUMENTS_BYTES:
                check_arguments("messages", self._arguments)
            id_ = call.id or f"{len(self._arguments):0{_ID_DIGITS}}"
            self._open.add(id_)
            self._ids[""].append(id_)
            self._ids.setdefault(function.name, deque()).append(id_)
            converted.append(ToolCall(id_, function.name, arguments))
        return tuple(converted)

    def answer(self, id_: str, name: str) -> str:
        """The call that a result answers: ``id_``, or the first one without a result.

        ``name`` is that of the function if it is known. Empty if there is no such call.
        """
        if not id_:
            ids = self._ids.get(name, deque())
            while ids and ids[0] not in self._open:
                ids.popleft()
            id_ = ids[0] if ids else ""
        self._open.discard(id_)
        return id_
