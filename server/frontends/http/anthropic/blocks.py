"""Converts Anthropic's messages, which are lists of blocks, to those of the service."""

from collections.abc import Mapping, Sequence
from typing import Any

from server.bounds import MAX_MESSAGES, MAX_TOOLS, Size
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
Placed = list[tuple[str, Block]]
"""Blocks, each with its path."""

_ROLES = ("user", "assistant", "system")
_TEXTS = ("text",)
_OF_USERS = ("text", "image")
_OF_ASSISTANTS = ("text", "thinking", "tool_use")


async def conversation_of(body: PromptFields, call: Call[Any]) -> Conversation:
    """Converts the messages of ``body``. Their number is checked first, then their images.

    Results of tools become messages of their own.

    Raises:
        InvalidArgumentError: there are no messages or too many, one has another role or block, the
            last is an answer, or an image is invalid; the error names the field.
    """
    given = body.messages
    Size(MAX_MESSAGES).check_count("messages", given)
    if not given:
        raise InvalidArgumentError("messages", "must not be empty")
    if given[-1].role == "assistant":
        raise InvalidArgumentError(
            f"messages[{len(given) - 1}].role", "is assistant: answers cannot be continued"
        )
    files = await _image_files(given, call)
    conversation = Conversation()
    if body.system:
        text = _text_of(_placed(body.system, "system"))
        conversation.add(Message("system", text), "system", {"content": "system"})
    for index, message in enumerate(given):
        _add(message, f"messages[{index}]", files, conversation)
    return conversation


def _add(message: SentMessage, path: str, files: Files, conversation: Conversation) -> None:
    """Converts the message at ``path``."""
    blocks = _placed(message.content, f"{path}.content")
    if message.role == "assistant":
        _add_answer(blocks, path, conversation)
    elif message.role == "user":
        _add_turn(blocks, path, files, conversation)
    elif message.role == "system":
        conversation.add(Message("system", _text_of(blocks)), path)
    else:
        raise InvalidArgumentError(
            f"{path}.role", f"{quoted(message.role)} is not one of {', '.join(_ROLES)}"
        )


def _add_turn(blocks: Placed, path: str, files: Files, conversation: Conversation) -> None:
    """Converts a message of the user: results of tools, and what is before, between and after."""
    others: Placed = []
    for place, block in blocks:
        if block.type != "tool_result":
            others.append((place, block))
            continue
        if others:
            _add_content("user", others, path, files, conversation)
            others = []
        result = _placed(block.content or "", f"{place}.content")
        tool_use_id = _required(block, "tool_use_id", place)
        _add_content("tool", result, place, files, conversation, tool_use_id)
    if others or not blocks:
        _add_content("user", others, path, files, conversation)


def _add_content(
    role: str,
    blocks: Placed,
    path: str,
    files: Files,
    conversation: Conversation,
    tool_call_id: str = "",
) -> None:
    """Adds a message of texts and images."""
    _check_types(blocks, _OF_USERS)
    names = {"tool_call_id": f"{path}.tool_use_id"}
    if not any(block.type == "image" for _, block in blocks):
        message = Message(role, _text_of(blocks), tool_call_id=tool_call_id)
        conversation.add(message, path, names)
        return
    parts = []
    for index, (place, block) in enumerate(blocks):
        is_image = block.type == "image"
        parts.append(
            Part(image=files[place]) if is_image else Part(text=_required(block, "text", place))
        )
        names |= {f"parts[{index}].image": f"{place}.source.data"}
        names |= {f"parts[{index}].text": f"{place}.text"}
    message = Message(role, parts=tuple(parts), tool_call_id=tool_call_id)
    conversation.add(message, path, names)


def _add_answer(blocks: Placed, path: str, conversation: Conversation) -> None:
    """Converts an earlier answer: text, what the model thought before it, and uses of tools."""
    _check_types(blocks, _OF_ASSISTANTS)
    of_types: dict[str, Placed] = {kind: [] for kind in _OF_ASSISTANTS}
    for place, block in blocks:
        of_types[block.type].append((place, block))
    uses = of_types["tool_use"]
    Size(MAX_TOOLS).check_count(f"{path}.content", uses)
    calls, names = [], {"reasoning": f"{path}.content"}
    for index, (place, block) in enumerate(uses):
        arguments = json_text(f"{place}.input", block.input)
        id_, name = (_required(block, field, place) for field in ("id", "name"))
        calls.append(ToolCall(id_, name, arguments))
        names[f"tool_calls[{index}]"] = place
        names[f"tool_calls[{index}].arguments"] = f"{place}.input"
    text = _text_of(of_types["text"])
    reasoning = "".join(_required(block, "thinking", at) for at, block in of_types["thinking"])
    message = Message("assistant", text, tuple(calls), reasoning=reasoning)
    conversation.add(message, path, names)


def _placed(content: str | Sequence[Block], path: str) -> Placed:
    """The blocks of a content at ``path``, with their paths. A text is one, unless it is empty."""
    if isinstance(content, str):
        return [(path, Block(type="text", text=content))] if content else []
    return [(f"{path}[{index}]", block) for index, block in enumerate(content)]


def _text_of(blocks: Placed) -> str:
    """Joins texts. Raises ``InvalidArgumentError`` for other blocks."""
    _check_types(blocks, _TEXTS)
    return "".join(_required(block, "text", path) for path, block in blocks)


def _required(block: Block, field: str, path: str) -> str:
    """The text in ``field`` of the block at ``path``."""
    text: str | None = getattr(block, field)
    if text is None:
        raise InvalidArgumentError(f"{path}.{field}", "is required")
    return text


def _check_types(blocks: Placed, allowed: Sequence[str]) -> None:
    for path, block in blocks:
        if block.type not in allowed:
            raise InvalidArgumentError(
                f"{path}.type",
                f"{quoted(block.type)} is not supported here, only {', '.join(allowed)}",
            )


async def _image_files(messages: Sequence[SentMessage], call: Call[Any]) -> Files:
    """Decodes the files of all images, also of those in results of tools.

    Raises:
        InvalidArgumentError: there are too many images, or one is too large or no base64; the
            error names it.
    """
    found: dict[str, str] = {}
    for index, message in enumerate(messages):
        for path, block in _placed(message.content, f"messages[{index}].content"):
            _find_image(block, path, found)
            if block.type == "tool_result":
                for place, inner in _placed(block.content or "", f"{path}.content"):
                    _find_image(inner, place, found)
    if not found:
        return {}
    paths = [f"{path}.source.data" for path in found]
    files = await Images(images=list(found.values()), field="messages", path=paths).files(call)
    return dict(zip(found, files, strict=True))


def _find_image(block: Block, path: str, found: dict[str, str]) -> None:
    """Adds the base64 of an image to ``found``."""
    if block.type != "image":
        return
    if block.source is None:
        raise InvalidArgumentError(f"{path}.source", "is required")
    if block.source.type != "base64":
        raise InvalidArgumentError(
            f"{path}.source.type", f"{quoted(block.source.type)} is not supported, only base64"
        )
    if block.source.data is None:
        raise InvalidArgumentError(f"{path}.source.data", "is required")
    found[path] = block.source.data
