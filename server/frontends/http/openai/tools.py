"""OpenAI's fields of tools, and their conversion to those of the service and back."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from server.bounds import MAX_TOOLS, Size
from server.errors import InvalidArgumentError
from server.printable import quoted
from server.service.generation_request import (
    ChatOptions,
    Tool,
    ToolCall,
    ToolChoice,
    json_object,
)


class FunctionDefinition(msgspec.Struct, kw_only=True):
    """A function. ``strict`` has no effect: only the arguments of a forced call are constrained."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, kw_only=True):
    """A tool that the model may ask to call. Only functions are supported."""

    type: str
    function: FunctionDefinition | None = None


class FunctionName(msgspec.Struct, kw_only=True):
    name: str


class NamedTool(msgspec.Struct, kw_only=True):
    """The tool that must be called."""

    type: str = "function"  # Hugging Face's client leaves it out
    function: FunctionName | None = None


class FunctionCall(msgspec.Struct, kw_only=True):
    """A call in an earlier answer. ``arguments`` is a JSON object."""

    name: str
    arguments: str


class SentToolCall(msgspec.Struct, kw_only=True):
    """A call in an earlier answer, which the client sends back."""

    function: FunctionCall
    id: str = ""
    type: str = "function"


def chat_options(
    definitions: Sequence[ToolDefinition] | None,
    choice: str | NamedTool | None,
    parallel: bool | None,
    variables: dict[str, Any] | None = None,
    effort: str | None = None,
    *,
    continues: bool = False,
) -> ChatOptions:
    """The service's options. Reasoning is separated from the text.

    Args:
        definitions: the field ``tools``.
        choice: the field ``tool_choice``: none, auto, required or the name of a tool.
        parallel: the field ``parallel_tool_calls``.
        variables: the field ``chat_template_kwargs``.
        effort: the field ``reasoning_effort``.
        continues: whether the last message is continued.

    Raises:
        InvalidArgumentError: a field is invalid; the error names it.
    """
    Size(MAX_TOOLS).check_count("tools", definitions or ())
    tools = tuple(
        _tool(definition, f"tools[{index}]") for index, definition in enumerate(definitions or ())
    )
    name = ""
    if isinstance(choice, NamedTool):
        if choice.type != "function" or choice.function is None:
            raise InvalidArgumentError("tool_choice.type", "is not supported, only function")
        name, choice = choice.function.name, "required"
    if choice is not None and choice not in [*ToolChoice]:
        raise InvalidArgumentError(
            "tool_choice", f"{quoted(choice)} is not one of {', '.join(ToolChoice)}"
        )
    return ChatOptions(
        tools=tools,
        tool_choice=ToolChoice(choice or ToolChoice.AUTO),
        tool_name=name,
        parallel_tool_calls=parallel is not False,
        template_variables=json_text("chat_template_kwargs", variables),
        reasoning_effort=effort or "",
        separate_reasoning=True,
        continue_final_message=continues,
    )


class ContinuingBody(Protocol):
    """vLLM's fields of a conversation whose last message may go on."""

    add_generation_prompt: bool | None
    continue_final_message: bool | None


def continues_final_message(body: ContinuingBody) -> bool:
    """Whether the last message of ``body`` is continued.

    Raises ``InvalidArgumentError`` unless either a new answer begins or that message goes on.
    """
    continues = bool(body.continue_final_message)
    if body.add_generation_prompt is continues:
        other = "false" if continues else "true"
        raise InvalidArgumentError("add_generation_prompt", f"must be {other} here")
    return continues


def _tool(definition: ToolDefinition, path: str) -> Tool:
    function = definition.function
    if definition.type != "function":
        raise InvalidArgumentError(
            f"{path}.type", f"{quoted(definition.type)} is not supported, only function"
        )
    if function is None:
        raise InvalidArgumentError(f"{path}.function", "is required")
    parameters = json_text(f"{path}.function.parameters", function.parameters)
    return Tool(function.name, function.description or "", parameters)


def json_text(path: str, value: dict[str, Any] | None) -> str:
    """``value`` as JSON; empty without any fields.

    Raises:
        InvalidArgumentError: it is nested too deeply; the error names ``path``.
    """
    if not value:
        return ""
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError as error:
        raise InvalidArgumentError(path, "nested too deeply") from error


def chat_option_names(num_tools: int) -> dict[str, str]:
    """The names of the service's options, for errors."""
    names = {"template_variables": "chat_template_kwargs", "tool_name": "tool_choice"}
    for index in range(num_tools):
        for field in ("name", "description", "parameters"):
            names[f"tools[{index}].{field}"] = f"tools[{index}].function.{field}"
    return names


def call_object(call: ToolCall) -> dict[str, Any]:
    """A call in an answer."""
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def sent_calls(calls: Sequence[SentToolCall], path: str) -> tuple[ToolCall, ...]:
    """Converts the calls of an earlier answer.

    Raises:
        InvalidArgumentError: there are too many, or arguments are no JSON object; it names the
            field.
    """
    Size(MAX_TOOLS).check_count(path, calls)
    converted = []
    for index, call in enumerate(calls):
        if call.type != "function":
            raise InvalidArgumentError(f"{path}[{index}].type", "is not function")
        json_object(call.function.arguments, f"{path}[{index}].function.arguments")
        converted.append(ToolCall(call.id, call.function.name, call.function.arguments))
    return tuple(converted)
