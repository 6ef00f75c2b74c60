"""Renders chat templates as Hugging Face defines them: sandboxed Jinja."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import msgspec
from jinja2 import TemplateError

from model.chat_template import compile_template, reads_variable, render_template, text_content
from server.bounds import (
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_NAME_BYTES,
    MAX_PARTS,
    MAX_TOOLS,
    MAX_TOOLS_BYTES,
    ruled,
    sized,
)
from server.errors import InvalidArgumentError

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by the assistant. ``arguments`` is a JSON object; empty means ``{}``."""

    id: str = sized("", max_bytes=MAX_NAME_BYTES)
    name: str = sized("", max_bytes=MAX_NAME_BYTES)
    arguments: str = ruled("as content", "")


@dataclass(frozen=True, slots=True)
class ContentPart:
    """A part of a message: a text, or an image's file."""

    text: str | None = ruled("as content", None)
    image: bytes | None = ruled(f"{MAX_IMAGE_BYTES:,} bytes, {MAX_IMAGES} images in all", None)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. ``role`` is one of :data:`ROLES`.

    ``tool_call_id`` names the call whose result the content is. ``parts`` replace the content.
    ``reasoning`` is what the assistant thought before it.
    """

    role: str = sized(max_bytes=MAX_NAME_BYTES)
    content: str = ruled("512 KiB, all messages together", "")
    tool_calls: tuple[ToolCall, ...] = sized((), max_items=MAX_TOOLS)
    tool_call_id: str = sized("", max_bytes=MAX_NAME_BYTES)
    parts: tuple[ContentPart, ...] = sized((), max_items=MAX_PARTS)
    reasoning: str = ruled("as content", "")

    @property
    def text(self) -> str:
        """Its texts, joined."""
        if not self.parts:
            return self.content
        return "".join(part.text or "" for part in self.parts)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the assistant may ask to call. ``parameters`` is a JSON schema."""

    name: str = ruled("64 letters, digits, underscores and hyphens", "")
    description: str = sized("", max_bytes=MAX_TOOLS_BYTES)
    parameters: str = ruled("64 KiB, all tools and template_variables together", "")


class ToolChoice(StrEnum):
    """Whether the answer has tool calls: as the model decides, never, or one."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What a chat template reads besides the messages, and which calls an answer may have.

    ``tool_name`` is the tool that must be called. Without ``parallel_tool_calls``, an answer has at
    most one call. ``template_variables`` is a JSON object with variables of the template, such as
    ``enable_thinking``. ``reasoning_effort`` is how much the model thinks, in the words of the
    template; "none" turns it off. ``separate_reasoning`` returns that apart from the text.
    ``continue_final_message`` continues the last message instead of answering it.
    ``drop_oldest_messages`` leaves out the oldest ones of a conversation that is too long.
    """

    tools: tuple[Tool, ...] = sized((), max_items=MAX_TOOLS)
    tool_choice: ToolChoice = ToolChoice.AUTO
    tool_name: str = sized("", max_bytes=MAX_NAME_BYTES)
    parallel_tool_calls: bool = True
    template_variables: str = ruled("as tools.parameters", "")
    reasoning_effort: str = sized("", max_bytes=MAX_NAME_BYTES)
    separate_reasoning: bool = False
    continue_final_message: bool = False
    drop_oldest_messages: bool = False

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that the model learns of."""
        is_forced = self.tool_name or self.tool_choice is not ToolChoice.NONE
        return self.tools if is_forced else ()


NO_OPTIONS = ChatOptions()
_REASONING_TAG = "</think>"
_MARK = "the message goes on here"
_SET_HERE = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message")


class ReasoningSupport(StrEnum):
    """Whether a model thinks before its answers, as its chat template tells.

    ``OPTIONAL``: the template reads ``reasoning_effort`` or ``enable_thinking``. ``ALWAYS``: it
    only has the tags of reasoning.
    """

    NEVER = "never"
    OPTIONAL = "optional"
    ALWAYS = "always"


class ChatTemplate:
    """Renders a conversation as a prompt for the assistant's next turn.

    Args:
        template: the Jinja source.
        special_tokens: texts of special tokens by name, such as ``bos_token``: the template's
            variables.
        has_images: whether the model reads images in messages. If so, the template gets the
            content of each message as a list of parts, as from processors of ``transformers``.

    Raises:
        jinja2.TemplateError: the template does not compile.
    """

    def __init__(
        self, template: str, special_tokens: dict[str, str], *, has_images: bool = False
    ) -> None:
        self._template, self._has_images = compile_template(template), has_images
        self._special_tokens = special_tokens
        self.describes_tools = reads_variable(template, "tools")
        """Whether prompts tell the model about tools."""
        self._reads_effort = reads_variable(template, "reasoning_effort")
        self._reads_switch = reads_variable(template, "enable_thinking")
        self.reasoning = ReasoningSupport.NEVER
        if self._reads_effort or self._reads_switch:
            self.reasoning = ReasoningSupport.OPTIONAL
        elif _REASONING_TAG in template:
            self.reasoning = ReasoningSupport.ALWAYS

    def render(self, messages: Sequence[Message], options: ChatOptions = NO_OPTIONS) -> str:
        """Renders a prompt.

        Raises:
            InvalidArgumentError: the template rejects the messages, a text is no JSON object, the
                template reads no effort, or the last message cannot be continued.
        """
        if options.continue_final_message:
            messages = [*messages[:-1], _marked(messages)]
        turns = [
            _turn(message, f"messages[{index}]", has_images=self._has_images)
            for index, message in enumerate(messages)
        ]
        variables = {**self._effort(options.reasoning_effort), **_variables(options)}
        variables["add_generation_prompt"] = not options.continue_final_message
        try:
            prompt = render_template(self._template, turns, self._special_tokens, variables)
        except TemplateError as error:
            raise InvalidArgumentError("messages", str(error)) from error
        return _before_mark(prompt) if options.continue_final_message else prompt

    def _effort(self, effort: str) -> dict[str, Any]:
        """The variables for a ``reasoning_effort``. A template without any may ignore "none"."""
        if self._reads_effort and effort:
            return {"reasoning_effort": effort}
        if self._reads_switch and effort:
            return {"enable_thinking": effort != "none"}
        if effort not in ("", "none"):
            raise InvalidArgumentError(
                "reasoning_effort", "is not read by this model's chat template"
            )
        return {}


def _turn(message: Message, path: str, *, has_images: bool) -> dict[str, Any]:
    """A message as templates expect it: without the fields that it does not have."""
    content: Any = text_content(message.text, has_images=has_images)
    if message.parts and has_images:
        content = [
            {"type": "image"} if part.text is None else {"type": "text", "text": part.text}
            for part in message.parts
        ]
    turn: dict[str, Any] = {"role": message.role, "content": content}
    if message.reasoning:
        turn["reasoning_content"] = message.reasoning
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json_object(
                        call.arguments, f"{path}.tool_calls[{index}].arguments"
                    ),
                },
            }
            for index, call in enumerate(message.tool_calls)
        ]
    if message.tool_call_id:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _marked(messages: Sequence[Message]) -> Message:
    """The last message, whose text ends with a mark.

    Raises ``InvalidArgumentError`` if it cannot be continued.
    """
    path = f"messages[{len(messages) - 1}]"
    if not messages or messages[-1].role != "assistant":
        raise InvalidArgumentError(
            "continue_final_message", "needs messages whose last is the assistant's"
        )
    last = messages[-1]
    if last.tool_calls:
        raise InvalidArgumentError(f"{path}.tool_calls", "cannot be continued")
    if not last.text:
        raise InvalidArgumentError(f"{path}.content", "is empty: there is nothing to continue")
    if last.parts:
        return replace(last, parts=(*last.parts, ContentPart(text=_MARK + " ")))
    return replace(last, content=f"{last.content}{_MARK} ")


def _before_mark(prompt: str) -> str:
    """What the template wrote before the mark.

    Raises ``InvalidArgumentError`` if the template leaves the message out.
    """
    before, mark, after = prompt.rpartition(_MARK)
    if not mark:
        raise InvalidArgumentError(
            "continue_final_message", "this model's chat template changes the last message"
        )
    # A template that drops the space after the mark also drops that at the end of other messages.
    return before if after.startswith(" ") else before.rstrip()


def _variables(options: ChatOptions) -> dict[str, Any]:
    variables = json_object(options.template_variables, "template_variables")
    for name in _SET_HERE:
        if name in variables:
            raise InvalidArgumentError("template_variables", f"cannot set {name}")
    if options.offered:
        variables["tools"] = [
            _described(tool, f"tools[{index}]") for index, tool in enumerate(options.offered)
        ]
    return variables


def _described(tool: Tool, path: str) -> dict[str, Any]:
    """A tool as templates expect it."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = json_object(tool.parameters, f"{path}.parameters")
    return {"type": "function", "function": function}


def json_object(text: str, path: str) -> dict[str, Any]:
    """The object that ``text`` is in JSON; without any fields if it is empty.

    Raises:
        InvalidArgumentError: it is none, or is nested too deeply. The error names ``path``.
    """
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgumentError(path, "is not a JSON object, or nested too deeply") from error
