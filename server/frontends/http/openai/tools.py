"""OpenAI's fields of tools, and their conversion to those of the service and back."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from server.bounds import MAX_TOOLS, Size
from server.errors import InvalidArgumentError
from server.printable import quoted
from server.service.generation_options import Grammar, GrammarKind
from server.service.generation_request import Tool, ToolCall
from server.service.tool_calls import CalledTool, Parsed, ToolCallParser, forced_call

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ID_LENGTH = 9  # Mistral's templates accept no other


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


class OfferedTools(NamedTuple):
    """The tools of a request. ``forced`` is the grammar of a call that must be made."""

    tools: tuple[Tool, ...] = ()
    forced: Grammar | None = None
    max_calls: int | None = None

    def separator(self) -> "CallSeparator | None":
        """What separates the calls in one output from its text; None without tools."""
        return CallSeparator(self) if self.tools else None


def offered_tools(
    definitions: Sequence[ToolDefinition] | None,
    choice: str | NamedTool | None,
    parallel: bool | None,
) -> OfferedTools:
    """The tools of a request.

    Args:
        definitions: the field ``tools``.
        choice: the field ``tool_choice``: none, auto, required or the name of a tool.
        parallel: the field ``parallel_tool_calls``: whether one answer may have several calls.

    Raises:
        InvalidArgumentError: a field is invalid; the error names it.
    """
    tools = _tools(definitions or ())
    if isinstance(choice, NamedTool):
        name = "" if choice.function is None else choice.function.name
        chosen = [tool for tool in tools if tool.name == name]
        if choice.type != "function" or not chosen:
            raise InvalidArgumentError("tool_choice", "is not one of tools")
        return OfferedTools(tools, _forced(chosen), 1)
    if choice not in (None, "none", "auto", "required"):
        raise InvalidArgumentError(
            "tool_choice", f"{quoted(choice)} is not one of none, auto, required"
        )
    if choice == "required":
        if not tools:
            raise InvalidArgumentError("tool_choice", "needs tools")
        return OfferedTools(tools, _forced(tools), 1)
    if choice == "none":
        return OfferedTools()
    return OfferedTools(tools, None, 1 if parallel is False else None)


def _forced(tools: Sequence[Tool]) -> Grammar:
    try:
        return forced_call(tools)
    except RecursionError as error:
        raise InvalidArgumentError("tools", "nested too deeply") from error


def grammar_of_call(choice: object) -> dict[str, str]:
    """The names of the grammar, for errors, if ``tool_choice`` forces a call."""
    if choice in (None, "none", "auto"):
        return {}
    return {"grammar": "tools", f"grammar.{GrammarKind.LARK}": "tools"}


def _tools(definitions: Sequence[ToolDefinition]) -> tuple[Tool, ...]:
    Size(MAX_TOOLS).check_count("tools", definitions)
    tools: dict[str, Tool] = {}
    for index, definition in enumerate(definitions):
        path, function = f"tools[{index}]", definition.function
        if definition.type != "function":
            raise InvalidArgumentError(
                f"{path}.type", f"{quoted(definition.type)} is not supported, only function"
            )
        if function is None:
            raise InvalidArgumentError(f"{path}.function", "is required")
        if not _NAME.fullmatch(function.name):
            raise InvalidArgumentError(
                f"{path}.function.name", "is not 1 … 64 letters, digits, underscores and hyphens"
            )
        if function.name in tools:
            raise InvalidArgumentError(f"{path}.function.name", "is the name of another tool")
        tools[function.name] = Tool(function.name, function.description, function.parameters)
    return tuple(tools.values())


class CallSeparator:
    """Separates the calls in one output from its text.

    Attributes:
        num_calls: the number of calls so far.
    """

    def __init__(self, offered: OfferedTools) -> None:
        self.num_calls = 0
        self._max_calls = offered.max_calls
        self._parser = ToolCallParser(frozenset(tool.name for tool in offered.tools))

    def push(self, text: str, *, is_last: bool) -> tuple[str, list[dict[str, Any]]]:
        """Adds text. Returns text of the answer, and OpenAI's objects of calls."""
        parsed = self._parser.push(text)
        if is_last:
            rest = self._parser.finish()
            parsed = Parsed(parsed.text + rest.text, parsed.calls + rest.calls)
        calls = []
        for call in parsed.calls:
            if self._max_calls is None or self.num_calls < self._max_calls:
                calls.append(_call_object(call))
                self.num_calls += 1
        return parsed.text, calls


def _call_object(call: CalledTool) -> dict[str, Any]:
    return {
        "id": uuid4().hex[:_ID_LENGTH],
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
        try:
            arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            raise InvalidArgumentError(
                f"{path}[{index}].function.arguments", "is not a JSON object, or nested too deeply"
            ) from None
        converted.append(ToolCall(call.id, call.function.name, arguments))
    return tuple(converted)
