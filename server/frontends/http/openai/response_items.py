"""The items of ``/v1/responses``: messages, tool calls and their results, in and out."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from server.bounds import MAX_MESSAGES, Size
from server.errors import InvalidArgumentError
from server.frontends.http.openai.messages import (
    ChatMessage,
    ContentPart,
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
    """A message, a tool call of an earlier answer, or the result of one."""

    role: str = ""
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


def flat_chat_options(
    given: Sequence[FlatTool] | None, choice: str | FlatNamedTool | None, parallel: bool | None
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
        return chat_options(definitions, named, parallel)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            error.field.replace(".function", ""), error.description
        ) from None


def input_messages(items: Sequence[InputItem], field: str) -> tuple[Message, ...]:
    """Converts items. Calls after an answer, or after other calls, are part of its message.

    Raises:
        InvalidArgumentError: an item is invalid; the error names the field.
    """
    Size(MAX_MESSAGES).check_count(field, items)
    if not items:
        raise InvalidArgumentError(field, "must not be empty")
    check_arguments(field, [item.arguments for item in items])
    messages: list[Message] = []
    for index, item in enumerate(items):
        path = f"{field}[{index}]"
        if item.type == "function_call_output":
            result = text_of(item.output, f"{path}.output")
            messages.append(Message("tool", result, tool_call_id=item.call_id))
        elif item.type != "function_call":
            messages.append(service_message(item, path))
        else:
            calls = _call(item, path)
            if messages and messages[-1].role == "assistant":
                calls = messages[-1].tool_calls + calls
                messages[-1] = replace(messages[-1], tool_calls=calls)
            else:
                messages.append(Message("assistant", "", calls))
    return tuple(messages)


def _call(item: InputItem, path: str) -> tuple[ToolCall, ...]:
    function = FunctionCall(name=item.name or "", arguments=item.arguments)
    try:
        return sent_calls([SentToolCall(id=item.call_id, function=function)], path)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}.arguments", error.description) from None


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


def text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    """The text, which is the only part of the message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
