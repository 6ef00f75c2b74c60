"""Tool calls in a model's text: finds them, or forces one with a grammar.

The models of each maker write calls in their own way. These are found:

- ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, any number of them within a text, as
  written by Hermes, Qwen and SmolLM;
- a text that is nothing but such objects, or a list of them, with ``arguments`` or ``parameters``,
  as written by Llama 3 and, after ``[TOOL_CALLS]``, by Mistral;
- the same in code blocks, as written by Qwen 2.5 Coder.
"""

import json
import re
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn
from uuid import uuid4

from server.bounds import MAX_TOOLS, MAX_TOOLS_BYTES, Size
from server.errors import InvalidArgumentError
from server.service.generation_options import Grammar, GrammarKind
from server.service.generation_request import GenerateRequest, TextChunk
from server.text.chat import ChatOptions, Tool, ToolCall, ToolChoice, json_object
from server.text.tags import start_of_tag

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_MARK = "[TOOL_CALLS]"
_ID_LENGTH = 9  # Mistral's templates accept no other
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_BLOCKS = ("```json", "```")
_BETWEEN = re.compile(r"(?:[\s;,]|```(?:json)?)*")


class Parsed(NamedTuple):
    """A part of a text, and the calls that ended in it."""

    text: str
    calls: tuple[ToolCall, ...] = ()


class ToolCallParser:
    """Separates calls of ``tools`` from the text around them, while the text is generated.

    Text that begins like JSON is held back until it ends, and a call until it is complete. What
    turns out not to be a call is text.
    """

    def __init__(self, tools: Collection[str]) -> None:
        self._tools = tools
        self._held = ""
        self._may_be_json = True  # until the first characters are others
        self._has_calls = False

    def push(self, text: str) -> Parsed:
        """Adds generated text."""
        self._held += text
        if self._may_be_json:
            if _begins_json(self._held):
                return Parsed("")
            self._may_be_json = False
        return self._take()

    def finish(self) -> Parsed:
        """Ends the text."""
        if self._may_be_json:
            calls = _calls_in(self._held.strip().removeprefix(_MARK), self._tools)
            if calls:
                return Parsed("", calls)
        parsed = self._take(is_last=True)
        rest = "" if self._has_calls and self._held.isspace() else self._held
        return Parsed(parsed.text + rest, parsed.calls)

    def _take(self, *, is_last: bool = False) -> Parsed:
        """Takes complete calls, and the text up to what may become a call, from what is held."""
        texts: list[str] = []
        calls: list[ToolCall] = []
        while (start := self._held.find(_OPEN)) >= 0:
            before = self._held[:start]
            inside, close, after = self._held[start + len(_OPEN) :].partition(_CLOSE)
            if not close and not is_last:
                break
            found = _calls_in(inside, self._tools)
            texts.append(before.rstrip() if found else before + _OPEN + inside + close)
            calls += found
            self._held = after
            self._has_calls = self._has_calls or bool(found)
        else:
            start = start_of_tag(self._held, _OPEN)
        before = self._held[:start]
        text = before.rstrip()
        self._held = self._held[len(text) :]
        return Parsed("".join(texts) + text, tuple(calls))


def _begins_json(text: str) -> bool:
    """Whether ``text`` may be the start of JSON, alone or in a code block."""
    begin = text.lstrip()
    for block in _BLOCKS:
        if block.startswith(begin):
            return True
        if begin.startswith(block):
            begin = begin.removeprefix(block).lstrip()
            break
    return begin[:1] in ("", "{", "[")


def _calls_in(text: str, tools: Collection[str]) -> tuple[ToolCall, ...]:
    """The calls of ``tools`` that ``text`` consists of; none if anything else is in it."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    values: list[Any] = []
    at = _skip(text, 0)
    try:
        while at < len(text):
            value, at = decoder.raw_decode(text, at)
            values += value if isinstance(value, list) else [value]
            at = _skip(text, at)
        return tuple(_call_of(value, tools) for value in values)
    except (ValueError, RecursionError):
        return ()


def _skip(text: str, start: int) -> int:
    """The end of the white space and separators from ``start`` on."""
    found = _BETWEEN.match(text, start)
    return start if found is None else found.end()


def _call_of(value: Any, tools: Collection[str]) -> ToolCall:
    """The call that a JSON value describes. Raises ``ValueError`` if it describes none."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or name not in tools:
        raise ValueError("not the call of a tool")
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are no object")
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    text.encode()  # an escaped half of a character is no text
    return ToolCall(uuid4().hex[:_ID_LENGTH], name, text)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


async def separate_calls(
    chunks: AsyncGenerator[TextChunk, None], options: ChatOptions
) -> AsyncGenerator[TextChunk, None]:
    """Moves calls of the offered tools from the texts of one input's outputs to ``tool_calls``."""
    tools = frozenset(tool.name for tool in options.offered)
    parsers: dict[int, ToolCallParser] = {}
    has_call: set[int] = set()
    async with aclosing(chunks):
        async for chunk in chunks:
            number = chunk.hypothesis
            if number not in parsers:
                parsers[number] = ToolCallParser(tools)
            text, calls = parsers[number].push(chunk.text)
            if chunk.finish is not None:
                rest = parsers[number].finish()
                text, calls = text + rest.text, calls + rest.calls
            if not options.parallel_tool_calls:
                calls = () if number in has_call else calls[:1]
            if calls:
                has_call.add(number)
            yield replace(chunk, text=text, tool_calls=calls)


def with_forced_call(request: GenerateRequest) -> GenerateRequest:
    """``request``, with the grammar of a tool call if its options force one.

    Raises:
        InvalidArgumentError: a tool or the choice is invalid.
    """
    options = request.chat
    check_tools(options)
    chosen = options.offered
    if options.tool_name:
        chosen = tuple(tool for tool in chosen if tool.name == options.tool_name)
        if not chosen:
            raise InvalidArgumentError("tool_name", "is not one of tools")
    if not forces_call(options):
        return request
    if not chosen:
        raise InvalidArgumentError("tool_choice", "needs tools")
    if request.decoding.grammar is not None:
        raise InvalidArgumentError("tool_choice", "cannot be combined with another grammar")
    decoding = replace(request.decoding, grammar=forced_call(chosen))
    return replace(request, decoding=decoding)


def forces_call(options: ChatOptions) -> bool:
    """Whether the answer must be a tool call."""
    return bool(options.tool_name) or options.tool_choice is ToolChoice.REQUIRED


def check_tools(options: ChatOptions) -> None:
    """Raises ``InvalidArgumentError`` if a tool is invalid, or there are too many."""
    Size(MAX_TOOLS).check_count("tools", options.tools)
    check_size(options)
    names: set[str] = set()
    for index, tool in enumerate(options.tools):
        path = f"tools[{index}]"
        if not _NAME.fullmatch(tool.name):
            raise InvalidArgumentError(
                f"{path}.name", "is not 1 … 64 letters, digits, underscores and hyphens"
            )
        if tool.name in names:
            raise InvalidArgumentError(f"{path}.name", "is the name of another tool")
        names.add(tool.name)
        json_object(tool.parameters, f"{path}.parameters")


def check_size(options: ChatOptions) -> int:
    """Returns the bytes of the options. Raises ``InvalidArgumentError`` if there are too many."""
    texts = [text for tool in options.tools for text in (tool.description, tool.parameters)]
    num_bytes = sum(len(text.encode()) for text in (*texts, options.template_variables))
    if num_bytes > MAX_TOOLS_BYTES:
        field = "tools" if options.tools else "template_variables"
        raise InvalidArgumentError(field, f"have more than {MAX_TOOLS_BYTES} bytes")
    return num_bytes


def forced_call(tools: Sequence[Tool]) -> Grammar:
    """The grammar of one call of one of ``tools``, which :class:`ToolCallParser` finds.

    The names of the tools need no escapes in JSON.
    """
    rules = ["start: " + " | ".join(f"call{index}" for index in range(len(tools)))]
    for index, tool in enumerate(tools):
        begin = json.dumps(json.dumps({"name": tool.name})[:-1] + ', "arguments": ')
        schema = tool.parameters.strip() or '{"type": "object"}'
        rules.append(f'call{index}: {begin} arguments{index} "}}"')
        rules.append(f"arguments{index}: %json {schema}")
    return Grammar(GrammarKind.LARK, "\n".join(rules))
