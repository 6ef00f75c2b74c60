"""Renders chat templates as Hugging Face defines them: sandboxed Jinja."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from model.chat_template import compile_template, reads_variable, render_template
from server.bounds import MAX_NAME_BYTES, MAX_TOOLS, ruled, sized
from server.errors import InvalidArgumentError

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by the assistant. ``arguments`` are by the names of its parameters."""

    id: str = sized(max_bytes=MAX_NAME_BYTES)
    name: str = sized(max_bytes=MAX_NAME_BYTES)
    arguments: Mapping[str, Any] = ruled("as content")

    def as_variable(self) -> dict[str, Any]:
        """The call as templates expect it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. ``role`` is one of :data:`ROLES`.

    ``tool_call_id`` names the call whose result the content is.
    """

    role: str = sized(max_bytes=MAX_NAME_BYTES)
    content: str = ruled("512 KiB, all messages together")
    tool_calls: tuple[ToolCall, ...] = sized((), max_items=MAX_TOOLS)
    tool_call_id: str = sized("", max_bytes=MAX_NAME_BYTES)

    def as_variable(self) -> dict[str, Any]:
        """The message as templates expect it: without the fields that it does not have."""
        variable: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            variable["tool_calls"] = [call.as_variable() for call in self.tool_calls]
        if self.tool_call_id:
            variable["tool_call_id"] = self.tool_call_id
        return variable


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the assistant may ask to call. ``parameters`` is a JSON schema."""

    name: str = sized(max_bytes=MAX_NAME_BYTES)
    description: str | None = ruled("as parameters", None)
    parameters: Mapping[str, Any] | None = ruled("64 KiB, all tools and variables together", None)

    def as_variable(self) -> dict[str, Any]:
        """The tool as templates expect it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        given = {name: value for name, value in function.items() if value is not None}
        return {"type": "function", "function": given}


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What a chat template reads besides the messages.

    ``variables`` are those that a template defines, such as ``enable_thinking``.
    """

    tools: tuple[Tool, ...] = sized((), max_items=MAX_TOOLS)
    variables: Mapping[str, Any] | None = ruled("as tools.parameters", None)


NO_OPTIONS = ChatOptions()


class ChatTemplate:
    """Renders a conversation as a prompt for the assistant's next turn.

    Args:
        template: the Jinja source.
        special_tokens: texts of special tokens by name, such as ``bos_token``: the template's
            variables.

    Raises:
        jinja2.TemplateError: the template does not compile.
    """

    def __init__(self, template: str, special_tokens: dict[str, str]) -> None:
        self._template = compile_template(template)
        self._special_tokens = special_tokens
        self.describes_tools = reads_variable(template, "tools")
        """Whether prompts tell the model about tools."""

    def render(self, messages: Sequence[Message], options: ChatOptions = NO_OPTIONS) -> str:
        """Renders a prompt. Raises ``InvalidArgumentError`` if the template rejects messages."""
        turns = [message.as_variable() for message in messages]
        variables = dict(options.variables or {})
        if options.tools:
            variables["tools"] = [tool.as_variable() for tool in options.tools]
        try:
            return render_template(self._template, turns, self._special_tokens, variables)
        except TemplateError as error:
            raise InvalidArgumentError("messages", str(error)) from error
