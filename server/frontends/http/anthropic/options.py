"""Converts the options of Anthropic's bodies to those of the service."""

from collections.abc import Sequence
from typing import Any

from server.bounds import MAX_TOOLS, Size
from server.errors import InvalidArgumentError
from server.frontends.http.anthropic.bodies import PromptFields, SentTool, SentToolChoice, Thinking
from server.frontends.http.fields import options_of
from server.frontends.http.openai.options import DEFAULT_TEMPERATURE, check_neutral, json_schema
from server.frontends.http.openai.tools import json_text
from server.printable import quoted
from server.service.generation_options import Grammar
from server.service.generation_request import (
    ChatOptions,
    GenerateRequest,
    Message,
    Tool,
    ToolChoice,
)

_TOOL_CHOICES = {
    "auto": ToolChoice.AUTO,
    "any": ToolChoice.REQUIRED,
    "tool": ToolChoice.REQUIRED,
    "none": ToolChoice.NONE,
}
# The effort that each type of thinking stands for, unless ``output_config`` has one.
_EFFORTS = {"enabled": "medium", "disabled": "none", "adaptive": ""}
_DISPLAYS = (None, "summarized", "omitted")
_GRAMMAR = "output_config.format.schema"


def message_names(body: Any) -> dict[str, str]:
    """The names that ``body`` uses for the service's fields."""
    effort = body.output_config is not None and body.output_config.effort is not None
    names = {
        "inputs": "messages",
        "chat": "tools",
        "max_new_tokens": "max_tokens",
        "stop_strings": "stop_sequences",
        "tool_name": "tool_choice.name",
        "reasoning_effort": "output_config.effort" if effort else "thinking.type",
        "grammar": _GRAMMAR,
        "grammar.json_schema": _GRAMMAR,
    }
    for index in range(len(body.tools or ())):
        names[f"tools[{index}].parameters"] = f"tools[{index}].input_schema"
    return names


def chat_options(body: PromptFields, messages: Sequence[Message]) -> ChatOptions:
    """The options of the chat template. Reasoning is separated from the text.

    Raises:
        InvalidArgumentError: a field is invalid; the error names it.
    """
    check_neutral(body, speed=("standard",))
    tools = body.tools or []
    Size(MAX_TOOLS).check_count("tools", tools)
    choice = body.tool_choice or SentToolChoice(type="auto")
    if choice.type not in _TOOL_CHOICES:
        raise InvalidArgumentError(
            "tool_choice.type", f"{quoted(choice.type)} is not one of {', '.join(_TOOL_CHOICES)}"
        )
    if (choice.type == "tool") != bool(choice.name):
        raise InvalidArgumentError("tool_choice.name", "goes with the type tool")
    return ChatOptions(
        tools=tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)),
        tool_choice=_TOOL_CHOICES[choice.type],
        tool_name=choice.name or "",
        parallel_tool_calls=not choice.disable_parallel_tool_use,
        reasoning_effort=_effort(body),
        separate_reasoning=True,
        continue_final_message=messages[-1].role == "assistant",
    )


def messages_request(body: Any, messages: tuple[Message, ...]) -> GenerateRequest:
    """The request for a message.

    Raises:
        InvalidArgumentError: a field is invalid; the error names it.
    """
    check_neutral(body, container=(), diagnostics=(), inference_geo=())
    is_search = body.beam_size is not None and body.beam_size > 1
    default = 0.0 if is_search else DEFAULT_TEMPERATURE
    values = {
        "messages": messages,
        "chat": chat_options(body, messages),
        "temperature": default if body.temperature is None else body.temperature,
        "max_new_tokens": body.max_tokens,
        "stop_strings": tuple(body.stop_sequences or ()),
        "grammar": _grammar(body),
        "version": None,
    }
    return options_of(body, GenerateRequest, values)


def _tool(tool: SentTool, path: str) -> Tool:
    if tool.type not in (None, "custom"):
        raise InvalidArgumentError(
            f"{path}.type", f"{quoted(tool.type)} is not supported, only custom"
        )
    try:
        check_neutral(tool, allowed_callers=(["direct"],), defer_loading=(False,))
        check_neutral(tool, input_examples=())
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}.{error.field}", error.description) from None
    schema = json_text(f"{path}.input_schema", tool.input_schema)
    return Tool(tool.name, tool.description or "", schema)


def _effort(body: PromptFields) -> str:
    thinking = body.thinking or Thinking(type="adaptive")
    if thinking.type not in _EFFORTS:
        raise InvalidArgumentError(
            "thinking.type", f"{quoted(thinking.type)} is not one of {', '.join(_EFFORTS)}"
        )
    if thinking.display not in _DISPLAYS:
        raise InvalidArgumentError(
            "thinking.display", f"{quoted(thinking.display)} is not one of summarized, omitted"
        )
    effort = None if body.output_config is None else body.output_config.effort
    if thinking.type == "disabled" or effort is None:
        return _EFFORTS[thinking.type]
    return effort


def _grammar(body: PromptFields) -> Grammar | None:
    form = None if body.output_config is None else body.output_config.format
    if form is None:
        return None
    if form.type != "json_schema":
        raise InvalidArgumentError(
            "output_config.format.type", f"{quoted(form.type)} is not json_schema"
        )
    if form.schema is None:
        raise InvalidArgumentError(_GRAMMAR, "is required")
    return json_schema(form.schema)
