"""Converts Anthropic's messages, which are lists of blocks, to those of the service."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from server.bounds import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS, Size
from server.errors import InvalidArgumentError
from server.frontends.http.anthropic.bodies import Block, PromptFields, SentMessage
from server.frontends.http.conversation import Conversation
from server.frontends.http.endpoint import Call
from server.frontends.http.images import Images
from server.frontends.http.openai.tools import json_text
from server.printable import quoted
from server.service.generation_request import ContentPart as Part
from server.service.generation_request import Message, ToolCall

Files = Mapping[str, bytes]
"""The files of images, by the path of their block."""
Content = str | Sequence[Block]
Placed = Sequence[tuple[int, Block]]
"""Blocks, each with its index in the content. Only errors and images need the whole path."""

_ROLES = ("user", "assistant", "system")
_TEXTS = ("text",)
_OF_USERS = ("text", "image")
_OF_ASSISTANTS = ("text", "thinking", "tool_use")


async def conversation_of(body: PromptFields, call: Call[Any]) -> Conversation:
    """Converts the messages of ``body``. Their number is checked first, then their images.

    Results of tools become messages of their own.

    Raises:
        InvalidArgumentError: there are no messages or too many, one has another role or block, or
            an image is invalid; the error names the field.
    """
    given = body.messages
    Size(MAX_MESSAGES).check_count("messages", given)
    if not given:
        raise InvalidArgumentError("messages", "must not be empty")
    _check_num_results(given)
    files = await _image_files(given, call)
    conversation = Conversation()
    if body.system:
        text = _text_of(body.system, "system")
        conversation.add(Message("system", text), "system", {"content": "system"})
    for index, message in enumerate(given):
        _add(message, f"messages[{index}]", files, conversation)
    return conversation


def _add(message: SentMessage, path: str, files: Files, conversation: Conversation) -> None:
    """Converts the message at ``path``."""
    if message.role == "assistant":
        _add_answer(message.content, path, conversation)
    elif message.role == "user":
        _add_turn(message.content, path, files, conversation)
    elif message.role == "system":
        text = _text_of(message.content, f"{path}.content")
        conversation.add(Message("system", text), path)
    else:
        raise InvalidArgumentError(
            f"{path}.role", f"{quoted(message.role)} is not one of {', '.join(_ROLES)}"
        )


def _add_turn(content: Content, path: str, files: Files, conversation: Conversation) -> None:
    """Converts a message of the user: results of tools, and what is before, between and after."""
    if isinstance(content, str):
        conversation.add(Message("user", content), path)
        return
    others: list[tuple[int, Block]] = []
    place = f"{path}.content"
    for index, block in enumerate(content):
        if block.type != "tool_result":
            others.append((index, block))
            continue
        if others:
            conversation.add(*_message("user", others, place, files))
            others = []
        own = f"{place}[{index}]"
        id_ = _required(block, "tool_use_id", place, index)
        given = block.content or ""
        names: dict[str, str] = {}
        if isinstance(given, str):
            message = Message("tool", given)
        else:
            message, _, names = _message("tool", [*enumerate(given)], f"{own}.content", files)
        names["tool_call_id"] = f"{own}.tool_use_id"
        conversation.add(replace(message, tool_call_id=id_), own, names)
    if others or not content:
        conversation.add(*_message("user", others, place, files))


class _Converted(NamedTuple):
    """A message, and the arguments with which :meth:`Conversation.add` takes it."""

    message: Message
    path: str
    names: dict[str, str]


def _message(role: str, blocks: Placed, place: str, files: Files) -> _Converted:
    """Converts texts and images of the content at ``place``."""
    _check_types(blocks, place, _OF_USERS)
    path = place.removesuffix(".content")
    if not any(block.type == "image" for _, block in blocks):
        return _Converted(Message(role, _joined(blocks, place)), path, {})
    Size(MAX_PARTS).check_count(place, blocks)
    parts, names = [], {}
    for number, (index, block) in enumerate(blocks):
        own = f"{place}[{index}]"
        if block.type == "image":
            parts.append(Part(image=files[own]))
        else:
            parts.append(Part(text=_required(block, "text", place, index)))
        names[f"parts[{number}].image"] = f"{own}.source.data"
        names[f"parts[{number}].text"] = f"{own}.text"
    return _Converted(Message(role, parts=tuple(parts)), path, names)


def _add_answer(content: Content, path: str, conversation: Conversation) -> None:
    """Converts an earlier answer: text, what the model thought before it, and uses of tools."""
    if isinstance(content, str):
        conversation.add(Message("assistant", content), path)
        return
    place, blocks = f"{path}.content", [*enumerate(content)]
    _check_types(blocks, place, _OF_ASSISTANTS)
    uses = [(index, block) for index, block in blocks if block.type == "tool_use"]
    Size(MAX_TOOLS).check_count(place, uses)
    calls, names = [], {"reasoning": place, "tool_calls": place}
    for number, (index, block) in enumerate(uses):
        own = f"{place}[{index}]"
        arguments = json_text(f"{own}.input", block.input)
        id_, name = (_required(block, field, place, index) for field in ("id", "name"))
        calls.append(ToolCall(id_, name, arguments))
        names[f"tool_calls[{number}]"] = own
        names[f"tool_calls[{number}].arguments"] = f"{own}.input"
    texts = [(index, block) for index, block in blocks if block.type == "text"]
    reasoning = "".join(
        _required(block, "thinking", place, index)
        for index, block in blocks
        if block.type == "thinking"
    )
    message = Message("assistant", _joined(texts, place), tuple(calls), reasoning=reasoning)
    conversation.add(message, path, names)


def _text_of(content: Content, place: str) -> str:
    """Joins the texts of a content. Raises ``InvalidArgumentError`` for other blocks."""
    if isinstance(content, str):
        return content
    blocks = [*enumerate(content)]
    _check_types(blocks, place, _TEXTS)
    return _joined(blocks, place)


def _joined(texts: Placed, place: str) -> str:
    return "".join(_required(block, "text", place, index) for index, block in texts)


def _required(block: Block, field: str, place: str, index: int) -> str:
    """The text in ``field`` of a block of the content at ``place``."""
    text: str | None = getattr(block, field)
    if text is None:
        raise InvalidArgumentError(f"{place}[{index}].{field}", "is required")
    return text


def _check_types(blocks: Placed, place: str, allowed: Sequence[str]) -> None:
    for index, block in blocks:
        if block.type not in allowed:
            raise InvalidArgumentError(
                f"{place}[{index}].type",
                f"{quoted(block.type)} is not supported here, only {', '.join(allowed)}",
            )


def _blocks(content: Content | None) -> Sequence[Block]:
    return () if content is None or isinstance(content, str) else content


def _check_num_results(messages: Sequence[SentMessage]) -> None:
    """Rejects more results of tools than there may be messages."""
    num_results = sum(
        block.type == "tool_result" for message in messages for block in _blocks(message.content)
    )
    if num_results > MAX_MESSAGES:
        raise InvalidArgumentError(
            "messages", f"have {num_results} results of tools, at most {MAX_MESSAGES}"
        )


async def _image_files(messages: Sequence[SentMessage], call: Call[Any]) -> Files:
    """Decodes the files of all images, also of those in results of tools.

    Raises:
        InvalidArgumentError: there are too many images, or one is too large or no base64; the
            error names it.
    """
    found: dict[str, str] = {}
    for number, message in enumerate(messages):
        for index, block in enumerate(_blocks(message.content)):
            if block.type == "image":
                path = f"messages[{number}].content[{index}]"
                found[path] = _data(block, path)
            elif block.type == "tool_result":
                for inner, part in enumerate(_blocks(block.content)):
                    if part.type == "image":
                        path = f"messages[{number}].content[{index}].content[{inner}]"
                        found[path] = _data(part, path)
    if not found:
        return {}
    paths = [f"{path}.source.data" for path in found]
    files = await Images(images=list(found.values()), field="messages", path=paths).files(call)
    return dict(zip(found, files, strict=True))


def _data(block: Block, path: str) -> str:
    """The base64 of the image at ``path``."""
    if block.source is None:
        raise InvalidArgumentError(f"{path}.source", "is required")
    if block.source.type != "base64":
        raise InvalidArgumentError(
            f"{path}.source.type", f"{quoted(block.source.type)} is not supported, only base64"
        )
    if block.source.data is None:
        raise InvalidArgumentError(f"{path}.source.data", "is required")
    return block.source.data
