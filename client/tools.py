"""Tools in conversations: what the model may ask to call, and its calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may ask to call.

    Args:
        name: 1 to 64 letters, digits, underscores and hyphens.
        description: what it does, for the model.
        parameters: a JSON schema of its arguments, as JSON text.
    """

    name: str
    description: str = ""
    parameters: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the model asks for; ``arguments`` is a JSON object as text."""

    id: str
    name: str
    arguments: str


class ToolChoice(StrEnum):
    """Whether an answer has tool calls."""

    AUTO = "auto"
    """As the model decides."""
    NONE = "none"
    REQUIRED = "required"
    """One, whose arguments match the parameters of its tool."""


class ChatOptions(TypedDict, total=False):
    """What a chat template reads besides messages. Tools need a template that describes them."""

    tools: Sequence[Tool]
    tool_choice: ToolChoice | None
    tool_name: str | None
    """Forces a call of this tool."""
    parallel_tool_calls: bool | None
    """Whether an answer may have several calls, which it may by default."""
    template_variables: str | None
    """Variables of the template, such as ``enable_thinking``: a JSON object as text."""
    reasoning_effort: str | None
    """How much the model thinks, in the words of its template; "none" turns it off."""
    separate_reasoning: bool | None
    """Returns what the model thinks before its answer apart from the text."""
    continue_final_message: bool | None
    """Continues the last message, which is the assistant's; the output is what follows its text."""
    drop_oldest_messages: bool | None
    """Leaves out the oldest messages of a conversation that is too long for the model."""
