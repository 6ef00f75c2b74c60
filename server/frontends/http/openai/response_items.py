"""The items of ``/v1/responses``: messages, reasoning, tool calls and their results."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from server.bounds import MAX_MESSAGES, Size
from server.errors import InvalidArgumentError
from server.frontends.http.body import NOTHING
from server.frontends.http.conversation import Conversation
from server.frontends.http.openai.messages import (
    ChatMessage,
    ContentPart,
    Files,
    service_message,
    text_of,
)
from server.frontends.http.openai.tools import (
    FunctionCall,
    FunctionDefinition,
    FunctionName,
    NamedTool,
    SentToolCall,
    ToolDefinition,
    chat_options,
    sent_calls,
)
from server.service.generation_request import ChatOptions, Message, ToolCall
from server.service.validation import check_arguments


class InputItem(ChatMessage, kw_only=True):
    """A message; reasoning or a tool call of an earlier answer; or the result of a call."""

    role: str = ""
    summary: msgspec.Raw = NOTHING
    encrypted_content: msgspec.Raw = NOTHING
    call_id: str = ""
    arguments: str = ""
    output: str | list[ContentPart] | None = None


class FlatTool(msgspec.Struct, kw_only=True):
    """A function that the model may ask to call."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FlatNamedTool(msgspec.Struct, kw_only=True):
    """The tool that must be called."""

    type: str
    name: str = ""


class Reasoning(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How much the model thinks. There are no summaries of it."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


def reasoning_effort(given: Reasoning | None) -> str | None:
    """The ``reasoning_effort`` of chat completions."""
    if given is None:
        return None
    for name in ("summary", "generate_summary"):
        if getattr(given, name) is not None:
            raise InvalidArgumentError(f"reasoning.{name}", "is not supported by this server")
    return given.effort


def flat_chat_options(
    given: Sequence[FlatTool] | None,
    choice: str | FlatNamedTool | None,
    parallel: bool | None,
    effort: str | None,
) -> ChatOptions:
    """As :func:`chat_options`, of the form of responses."""
    definitions = [
        ToolDefinition(
            type=tool.type,
            function=FunctionDefinition(
                name=tool.name, description=tool.description, parameters=tool.parameters
            ),
        )
        for tool in given or ()
    ]
    if isinstance(choice, FlatNamedTool):
        named: str | NamedTool | None = NamedTool(
            type=choice.type, function=FunctionName(name=choice.name)
        )
    else:
        named = choice
    try:
        return chat_options(definitions, named, parallel, effort=effort)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            error.field.replace(".function", ""), error.description
        ) from None


def add_items(
    items: Sequence[InputItem], files: Files, field: str, conversation: Conversation
) -> None:
    """Converts items. Calls after an answer, or after other calls, are part of its message.

    Reasoning belongs to the answer, or the calls, after it.

    Args:
        items: messages, reasoning, tool calls and their results.
        files: from :func:`server.frontends.http.openai.messages.image_files`.
        field: their name in the body.
        conversation: gets the messages.

    Raises:
        InvalidArgumentError: an item is invalid; the error names the field.
    """
    Size(MAX_MESSAGES).check_count(field, items)
    if not items:
        raise InvalidArgumentError(field, "must not be empty")
    check_arguments(field, [item.arguments for item in items])
    reasoning, thought_at = "", ""
    for index, item in enumerate(items):
        path = f"{field}[{index}]"
        if item.type == "function_call_output":
            result = text_of(item.output, f"{path}.output")
            message = Message("tool", result, tool_call_id=item.call_id)
            names = {"content": f"{path}.output", "tool_call_id": f"{path}.call_id"}
            conversation.add(message, path, names)
        elif item.type == "reasoning":
            thought_at = f"{path}.content"
            reasoning += text_of(item.content, thought_at, types=("reasoning_text",))
        elif item.type != "function_call":
            message = service_message(item, files, path)
            names = {}
            if message.role == "assistant" and reasoning and not message.reasoning:
                message, names = replace(message, reasoning=reasoning), {"reasoning": thought_at}
            if message.role == "assistant":
                reasoning = ""
            conversation.add(message, path, names)
        else:
            call = _call(item, path)
            if reasoning or not conversation.ends_with("assistant"):
                message = Message("assistant", "", reasoning=reasoning)
                conversation.add(message, path, {"reasoning": thought_at})
                reasoning = ""
            conversation.add_call(call, path, {"id": f"{path}.call_id"})


def _call(item: InputItem, path: str) -> ToolCall:
    function = FunctionCall(name=item.name or "", arguments=item.arguments)
    try:
        (call,) = sent_calls([SentToolCall(id=item.call_id, function=function)], path)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}.arguments", error.description) from None
    return call


def call_item(call: ToolCall) -> dict[str, Any]:
    """The item of a tool call."""
    return {
        "id": f"fc_{call.id}",
        "type": "function_call",
        "call_id": call.id,
        "status": "completed",
        "name": call.name,
        "arguments": call.arguments,
    }


def message_item(item_id: str, status: str, content: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The item of the answer's text."""
    return {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": list(content),
    }


def reasoning_item(item_id: str, status: str, text: str | None = None) -> dict[str, Any]:
    """The item of what the model thinks; without a text before the first part of it."""
    return {
        "id": item_id,
        "type": "reasoning",
        "summary": [],
        "content": [] if text is None else [reasoning_part(text)],
        "status": status,
    }


def reasoning_part(text: str) -> dict[str, Any]:
    """What the model thinks, which is the only part of its item."""
    return {"type": "reasoning_text", "text": text}


def text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    """The text, which is the only part of the message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
