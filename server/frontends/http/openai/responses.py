"""OpenAI's ``/v1/responses``: texts and images in, text out. Responses are not stored."""

import re
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import msgspec
from starlette.responses import Response

from server.bounds import Size
from server.errors import InvalidArgumentError
from server.frontends.http.body import NOTHING
from server.frontends.http.conversation import Conversation
from server.frontends.http.endpoint import Call, json_response
from server.frontends.http.event_stream import EventStream
from server.frontends.http.openai.logprobs import Spell, token_list
from server.frontends.http.openai.messages import image_files
from server.frontends.http.openai.options import (
    GenerationFields,
    JsonSchema,
    ResponseFormat,
    body_type,
    check_neutral,
    generate_request,
    sent_names,
)
from server.frontends.http.openai.response_events import ResponseEvents
from server.frontends.http.openai.response_items import (
    FlatNamedTool,
    FlatTool,
    InputItem,
    Reasoning,
    add_items,
    call_item,
    flat_chat_options,
    message_item,
    reasoning_effort,
    reasoning_item,
    text_part,
)
from server.frontends.http.openai.usage import response_usage
from server.service.generation_request import Finish, FinishReason, Message, TextChunk

_NAMES = {"messages": "input", "inputs": "input", "max_new_tokens": "max_output_tokens"}
# Limits of the metadata, which the response repeats; in characters, as OpenAI's own.
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
_ENDS = 4  # events at the end of a stream that repeat all log-probabilities
_LOGPROBS = "message.output_text.logprobs"


class TextFormat(msgspec.Struct, kw_only=True):
    """The output format; ``type`` is text, json_object or json_schema."""

    type: str
    name: str | None = None
    schema: Any = None


class TextOptions(msgspec.Struct, kw_only=True):
    """Options of the text. ``verbosity`` has no effect."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ResponseFields(GenerationFields, kw_only=True):
    """The body. Fields of the last group are rejected unless their values have no effect."""

    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: TextOptions | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    metadata: dict[str, str] | None = None
    tools: list[FlatTool] | None = None
    tool_choice: str | FlatNamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None

    previous_response_id: msgspec.Raw = NOTHING
    conversation: msgspec.Raw = NOTHING
    background: msgspec.Raw = NOTHING
    max_tool_calls: msgspec.Raw = NOTHING
    prompt: msgspec.Raw = NOTHING


ResponseBody = body_type(ResponseFields)


def names_in(body: Any) -> dict[str, str]:
    """The names that ``body`` uses for the service's fields."""
    names = {field: _as_sent(name) for field, name in {**sent_names(body), **_NAMES}.items()}
    names["reasoning_effort"] = "reasoning.effort"
    return {**names, "tool_name": "tool_choice", "chat": "tools"}


def _as_sent(path: str) -> str:
    """Reverts the renaming of :func:`_with_format` in the path of a field."""
    return re.sub(r"^response_format(\.json_schema)?", "text.format", path)


async def responses(call: Call[Any]) -> Response | EventStream:
    """Answers a text or a conversation, as one response or a stream of events."""
    body = call.body
    check_neutral(
        body,
        n=(1,),
        previous_response_id=(),
        conversation=(),
        background=(False,),
        max_tool_calls=(),
        prompt=(),
        include=([_LOGPROBS],),
        response_format=(),
        max_tokens=(),
    )
    effort = reasoning_effort(body.reasoning)
    _check_metadata(body.metadata or {})
    conversation = await _conversation(body, call)
    chat = flat_chat_options(body.tools, body.tool_choice, body.parallel_tool_calls, effort)
    chat = replace(chat, drop_oldest_messages=body.truncation == "auto")
    body.input = ""  # its messages would keep the bytes of the body
    try:
        request = generate_request(
            _with_format(body),
            messages=conversation.messages,
            max_new_tokens=body.max_output_tokens,
            logprobs=bool(body.include),
            top_logprobs=body.top_logprobs if body.include else None,
            chat=chat,
        )
    except InvalidArgumentError as error:
        raise InvalidArgumentError(_as_sent(error.field), error.description) from None
    spell = call.service.token_speller(body.model)
    answer = Answer(body, call.request_id, spell)
    if body.stream:
        with conversation.named():
            chunks = await call.service.generate_stream(request, call.caller)
        events = ResponseEvents()
        return EventStream(_events(chunks, events, answer, call), error_event=events.error)
    with conversation.named():
        result = await call.service.generate(request, call.caller)
    (hypothesis,) = result.outputs[0].hypotheses

    def encode() -> Response:
        scored = token_list(hypothesis.logprobs, spell) if hypothesis.logprobs else []
        calls = list(map(call_item, hypothesis.tool_calls))
        whole = answer.completed(
            hypothesis.reasoning, hypothesis.text, scored, calls, hypothesis.finish
        )
        return json_response(whole)

    return await call.service.build(result.num_values, encode, call.caller)


def _check_metadata(metadata: dict[str, str]) -> None:
    Size(MAX_METADATA).check_count("metadata", metadata)
    for name, value in metadata.items():
        for what, text, limit in (
            ("key", name, MAX_METADATA_KEY),
            ("value", value, MAX_METADATA_VALUE),
        ):
            if len(text) > limit:
                raise InvalidArgumentError("metadata", f"a {what} has more than {limit} characters")


async def _conversation(body: ResponseFields, call: Call[Any]) -> Conversation:
    given, conversation = body.input, Conversation()
    if body.instructions:
        place = "instructions"
        conversation.add(Message("system", body.instructions), place, {"content": place})
    if isinstance(given, str):
        conversation.add(Message("user", given), "input", {"content": "input"})
    else:
        add_items(given, await image_files(given, call, "input"), "input", conversation)
    return conversation


def _with_format(body: Any) -> Any:
    """Converts ``text.format`` to the ``response_format`` of chat completions, in ``body``."""
    given = body.text.format if body.text is not None else None
    if given is not None:
        schema = JsonSchema(name=given.name, schema=given.schema)
        body.response_format = ResponseFormat(type=given.type, json_schema=schema)
    return body


class Answer:
    """The ``response`` object of one call, at each of its stages."""

    def __init__(self, body: Any, request_id: str, spell: Spell) -> None:
        self.spell = spell
        self._item_id, self._reasoning_id = f"msg_{request_id}", f"rs_{request_id}"
        self._fields = {
            "id": f"resp_{request_id}",
            "object": "response",
            "created_at": int(time.time()),
            "model": body.model,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "temperature": body.temperature,
            "top_p": body.top_p,
            "text": {"format": (body.text and body.text.format) or {"type": "text"}},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "tool_choice": body.tool_choice or "auto",
            "truncation": body.truncation or "disabled",
            "tools": body.tools or [],
            "store": False,
            "error": None,
        }

    def in_progress(self) -> dict[str, Any]:
        """The object before the first token."""
        return {**self._fields, "status": "in_progress", "output": [], "usage": None}

    def message(self) -> dict[str, Any]:
        """The message before its first text."""
        return message_item(self._item_id, "in_progress", [])

    def reasoning(self, text: str | None = None) -> dict[str, Any]:
        """The reasoning, whole; before its first part without a text."""
        status = "in_progress" if text is None else "completed"
        return reasoning_item(self._reasoning_id, status, text)

    def completed(
        self,
        reasoning: str,
        text: str,
        logprobs: list[dict[str, Any]],
        calls: list[dict[str, Any]],
        finish: Finish,
    ) -> dict[str, Any]:
        """The object after the last token. It has a message unless there are calls alone."""
        is_whole = finish.reason in (FinishReason.STOP, FinishReason.STOP_STRING)
        status = "completed" if is_whole else "incomplete"
        items = [self.reasoning(reasoning)] if reasoning else []
        if text or not calls:
            items.append(message_item(self._item_id, status, [text_part(text, logprobs)]))
        items += calls
        return {
            **self._fields,
            "status": status,
            "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
            "output": items,
            "usage": response_usage(finish.usage),
        }


async def _events(
    chunks: AsyncGenerator[TextChunk, None],
    events: ResponseEvents,
    answer: Answer,
    call: Call[Any],
) -> AsyncGenerator[bytes, None]:
    """Yields the events that OpenAI's clients expect, in their order."""
    texts: list[str] = []
    thoughts: list[str] = []
    scored: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    num_values = 0
    async with aclosing(chunks):
        async for chunk in chunks:
            if not events.has_begun:
                yield events.begin(answer.in_progress())
            logprobs = token_list(chunk.logprobs, answer.spell) if chunk.logprobs else []
            scored += logprobs
            num_values += chunk.num_values
            calls += map(call_item, chunk.tool_calls)
            if chunk.reasoning:
                if not thoughts:
                    yield events.begin_reasoning(answer.reasoning())
                thoughts.append(chunk.reasoning)
                yield events.reasoning_delta(chunk.reasoning)
            if events.is_reasoning and (chunk.text or calls or chunk.finish is not None):
                yield events.end_reasoning(answer.reasoning("".join(thoughts)))
            is_empty = chunk.finish is not None and not calls
            if not events.has_message and (chunk.text or is_empty):
                yield events.begin_message(answer.message())
            if chunk.text:
                texts.append(chunk.text)
                yield events.delta(chunk.text, logprobs)
            if chunk.finish is not None:
                said, thought = "".join(texts), "".join(thoughts)
                whole = answer.completed(thought, said, scored, calls, chunk.finish)
                end = partial(events.end, whole)
                yield await call.service.build(_ENDS * num_values, end, call.caller)
