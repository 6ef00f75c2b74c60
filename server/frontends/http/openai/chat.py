"""``/v1/chat/completions``."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.responses import Response

from server.frontends.http.body import NOTHING
from server.frontends.http.endpoint import Call, json_response
from server.frontends.http.event_stream import DONE, EventStream, event
from server.frontends.http.openai.logprobs import Spell, chat_logprobs
from server.frontends.http.openai.messages import ChatMessage, service_messages
from server.frontends.http.openai.options import (
    FINISH_REASONS,
    GenerationFields,
    body_type,
    check_neutral,
    generate_request,
    sent_names,
)
from server.frontends.http.openai.stream_usage import StreamUsage
from server.frontends.http.openai.tools import (
    CallSeparator,
    NamedTool,
    OfferedTools,
    ToolDefinition,
    grammar_of_call,
    offered_tools,
)
from server.frontends.http.openai.usage import completion_usage
from server.service.generation_request import ChatOptions, Hypothesis, TextChunk


class ChatFields(GenerationFields, kw_only=True):
    """The body. Fields of the last group are rejected unless their values have no effect."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: str | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    metadata: msgspec.Raw = NOTHING

    functions: msgspec.Raw = NOTHING
    function_call: msgspec.Raw = NOTHING
    modalities: msgspec.Raw = NOTHING
    audio: msgspec.Raw = NOTHING
    prediction: msgspec.Raw = NOTHING
    reasoning_effort: msgspec.Raw = NOTHING
    verbosity: msgspec.Raw = NOTHING
    web_search_options: msgspec.Raw = NOTHING
    echo: msgspec.Raw = NOTHING
    add_generation_prompt: msgspec.Raw = NOTHING
    continue_final_message: msgspec.Raw = NOTHING
    add_special_tokens: msgspec.Raw = NOTHING
    documents: msgspec.Raw = NOTHING
    chat_template: msgspec.Raw = NOTHING
    mm_processor_kwargs: msgspec.Raw = NOTHING
    include_reasoning: msgspec.Raw = NOTHING


ChatBody = body_type(ChatFields)


def chat_names(body: Any) -> dict[str, str]:
    """The names that ``body`` uses for the service's fields."""
    names = {**sent_names(body), "inputs": "messages", "variables": "chat_template_kwargs"}
    return names | grammar_of_call(body.tool_choice)


async def chat_completions(call: Call[Any]) -> Response | EventStream:
    """Answers a conversation, as one response or a stream of deltas."""
    body = call.body
    check_neutral(
        body,
        functions=(),
        function_call=("none", "auto"),
        modalities=(["text"],),
        audio=(),
        prediction=(),
        reasoning_effort=("none",),
        verbosity=("medium",),
        web_search_options=(),
        echo=(False,),
        add_generation_prompt=(True,),
        continue_final_message=(False,),
        add_special_tokens=(False,),
        documents=(),
        chat_template=(),
        mm_processor_kwargs=({},),
        include_reasoning=(True, False),
    )
    longest = body.max_completion_tokens
    messages = service_messages(body.messages)
    offered = offered_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
    body.messages = []  # they would keep the bytes of the body
    request = generate_request(
        body,
        messages=messages,
        chat=ChatOptions(offered.tools, body.chat_template_kwargs),
        forced=offered.forced,
        max_new_tokens=body.max_tokens if longest is None else longest,
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs,
        echo=None,
    )
    head = {"id": f"chatcmpl-{call.request_id}", "created": int(time.time()), "model": body.model}
    spell = call.service.token_speller(body.model)
    if body.stream:
        chunks = await call.service.generate_stream(request, call.caller)
        usage = StreamUsage(body.stream_options)
        head["object"] = "chat.completion.chunk"
        return EventStream(_events(chunks, head, spell, usage, offered))
    result = await call.service.generate(request, call.caller)
    (output,) = result.outputs

    def encode() -> Response:
        return json_response(
            {
                **head,
                "object": "chat.completion",
                "choices": [
                    _choice(index, hypothesis, spell, offered)
                    for index, hypothesis in enumerate(output.hypotheses)
                ],
                "usage": completion_usage(result.usage),
            }
        )

    return await call.service.build(result.num_values, encode, call.caller)


def _choice(
    index: int, hypothesis: Hypothesis, spell: Spell, offered: OfferedTools
) -> dict[str, Any]:
    scored = hypothesis.logprobs
    reason = FINISH_REASONS[hypothesis.finish.reason]
    message: dict[str, Any] = {"role": "assistant", "content": hypothesis.text, "refusal": None}
    separator = offered.separator()
    if separator is not None:
        text, calls = separator.push(hypothesis.text, is_last=True)
        if calls:
            message["content"] = text or None
            message["tool_calls"] = calls
            reason = _reason_of_calls(reason)
    return {
        "index": index,
        "message": message,
        "logprobs": chat_logprobs(scored, spell) if scored else None,
        "finish_reason": reason,
    }


def _reason_of_calls(reason: str) -> str:
    """Why an output with tool calls ended."""
    return "tool_calls" if reason == "stop" else reason


async def _events(
    chunks: AsyncGenerator[TextChunk, None],
    head: dict[str, Any],
    spell: Spell,
    usage: StreamUsage,
    offered: OfferedTools,
) -> AsyncGenerator[bytes, None]:
    """Yields one event per chunk. The first delta of each choice has the role."""
    separators: dict[int, CallSeparator | None] = {}
    async with aclosing(chunks):
        async for chunk in chunks:
            delta: dict[str, Any] = {}
            if chunk.hypothesis not in separators:
                separators[chunk.hypothesis] = offered.separator()
                delta["role"] = "assistant"
            separator = separators[chunk.hypothesis]
            finish = chunk.finish
            reason = None if finish is None else FINISH_REASONS[finish.reason]
            text = chunk.text
            if separator is not None:
                first = separator.num_calls
                text, calls = separator.push(text, is_last=finish is not None)
                if calls:
                    delta["tool_calls"] = [
                        {"index": index, **call} for index, call in enumerate(calls, first)
                    ]
                if reason is not None and separator.num_calls:
                    reason = _reason_of_calls(reason)
            if text or "role" in delta:
                delta["content"] = text
            choice = {
                "index": chunk.hypothesis,
                "delta": delta,
                "logprobs": chat_logprobs(chunk.logprobs, spell) if chunk.logprobs else None,
                "finish_reason": reason,
            }
            yield event({**head, "choices": [choice], **usage.push(chunk)})
    if usage.is_wanted:
        yield event({**head, "choices": [], "usage": usage.total()})
    yield DONE
