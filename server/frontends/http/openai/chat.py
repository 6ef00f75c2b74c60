"""``/v1/chat/completions``."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.responses import Response

from server.errors import InvalidArgumentError
from server.frontends.http.body import NOTHING
from server.frontends.http.endpoint import Call, json_response
from server.frontends.http.event_stream import DONE, EventStream, event
from server.frontends.http.openai.logprobs import (
    Spell,
    chat_logprobs,
    num_prompt_logprobs,
    prompt_logprobs,
    with_top,
)
from server.frontends.http.openai.messages import ChatMessage, image_files, service_messages
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
    NamedTool,
    ToolDefinition,
    call_object,
    chat_option_names,
    chat_options,
    continues_final_message,
)
from server.frontends.http.openai.usage import completion_usage
from server.service.generation_request import Finish, Hypothesis, ScoredToken, TextChunk


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
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    prompt_logprobs: int | None = None  # type: ignore[assignment]
    return_token_ids: bool | None = None  # type: ignore[assignment]
    metadata: msgspec.Raw = NOTHING

    functions: msgspec.Raw = NOTHING
    function_call: msgspec.Raw = NOTHING
    modalities: msgspec.Raw = NOTHING
    audio: msgspec.Raw = NOTHING
    prediction: msgspec.Raw = NOTHING
    verbosity: msgspec.Raw = NOTHING
    web_search_options: msgspec.Raw = NOTHING
    echo: msgspec.Raw = NOTHING
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: msgspec.Raw = NOTHING
    documents: msgspec.Raw = NOTHING
    chat_template: msgspec.Raw = NOTHING
    mm_processor_kwargs: msgspec.Raw = NOTHING


ChatBody = body_type(ChatFields)


def chat_names(body: Any) -> dict[str, str]:
    """The names that ``body`` uses for the service's fields."""
    names = {**sent_names(body), "inputs": "messages", "chat": "tools"}
    if 0 <= (body.top_logprobs or 0) < (body.prompt_logprobs or 0):
        names["top_logprobs"] = "prompt_logprobs"
    return names | chat_option_names(len(body.tools or ()))


async def chat_completions(call: Call[Any]) -> Response | EventStream:
    """Answers a conversation, as one response or a stream of deltas."""
    body = call.body
    _check_replaced(body)
    check_neutral(
        body,
        modalities=(["text"],),
        audio=(),
        prediction=(),
        verbosity=("medium",),
        web_search_options=(),
        echo=(False,),
        add_special_tokens=(False,),
        documents=(),
        chat_template=(),
        mm_processor_kwargs=({},),
    )
    longest = body.max_completion_tokens
    messages = service_messages(body.messages, await image_files(body.messages, call))
    chat = chat_options(
        *(body.tools, body.tool_choice, body.parallel_tool_calls),
        *(body.chat_template_kwargs, body.reasoning_effort),
        continues=continues_final_message(body),
    )
    has_reasoning, has_ids = body.include_reasoning is not False, bool(body.return_token_ids)
    num_prompt = num_prompt_logprobs(body)
    body.messages = []  # they would keep the bytes of the body
    request = generate_request(
        body,
        messages=messages,
        chat=chat,
        max_new_tokens=body.max_tokens if longest is None else longest,
        logprobs=body.logprobs,
        top_logprobs=_num_top_logprobs(body.top_logprobs, num_prompt),
        prompt_logprobs=num_prompt is not None,
        echo=None,
        token_ids=has_ids,
    )
    head = {"id": f"chatcmpl-{call.request_id}", "created": int(time.time()), "model": body.model}
    spell = call.service.token_speller(body.model)
    if body.stream:
        chunks = await call.service.generate_stream(request, call.caller)
        usage = StreamUsage(body.stream_options)
        head["object"] = "chat.completion.chunk"
        events = _events(chunks, head, spell, usage, has_reasoning=has_reasoning, has_ids=has_ids)
        return EventStream(events)
    result = await call.service.generate(request, call.caller)
    (output,) = result.outputs
    first = output.hypotheses[0]

    def encode() -> Response:
        choices = []
        for index, hypothesis in enumerate(output.hypotheses):
            scored = hypothesis.logprobs
            if num_prompt is not None:
                scored = with_top(scored, body.top_logprobs or 0)
            choice = _choice(index, hypothesis, scored, spell, has_reasoning=has_reasoning)
            choices.append(choice | ({"token_ids": hypothesis.token_ids} if has_ids else {}))
        usage = completion_usage(result.usage)
        answer = {**head, "object": "chat.completion", "choices": choices, "usage": usage}
        if num_prompt is not None:
            scored = first.finish.prompt_logprobs
            answer["prompt_logprobs"] = prompt_logprobs(scored, num_prompt, spell)
        if has_ids:
            answer["prompt_token_ids"] = first.input_ids
        return json_response(answer)

    return await call.service.build(result.num_values, encode, call.caller)


def _check_replaced(body: Any) -> None:
    """Rejects the fields that OpenAI replaced by those for tools."""
    try:
        check_neutral(body, functions=(), function_call=("none", "auto"))
    except InvalidArgumentError as error:
        other = "tools" if error.field == "functions" else "tool_choice"
        raise InvalidArgumentError(error.field, f"is not supported: send {other}") from None


def _num_top_logprobs(given: int | None, num_prompt: int | None) -> int | None:
    """How many of the most likely tokens to compute, for the answer and the prompt."""
    if num_prompt is None or (given is not None and given < 0):
        return given
    return max(given or 0, num_prompt)


def _choice(
    index: int,
    hypothesis: Hypothesis,
    scored: Sequence[ScoredToken],
    spell: Spell,
    *,
    has_reasoning: bool,
) -> dict[str, Any]:
    """Makes a choice. ``scored``: its tokens with log-probabilities."""
    calls = hypothesis.tool_calls
    message: dict[str, Any] = {"role": "assistant", "content": hypothesis.text, "refusal": None}
    if hypothesis.reasoning and has_reasoning:
        message["reasoning_content"] = hypothesis.reasoning
    if calls:
        message["content"] = hypothesis.text or None
        message["tool_calls"] = list(map(call_object, calls))
    return {
        "index": index,
        "message": message,
        "logprobs": chat_logprobs(scored, spell) if scored else None,
        "finish_reason": _finish_reason(hypothesis.finish, has_calls=bool(calls)),
    }


def _finish_reason(finish: Finish, *, has_calls: bool) -> str:
    reason = FINISH_REASONS[finish.reason]
    return "tool_calls" if has_calls and reason == "stop" else reason


async def _events(
    chunks: AsyncGenerator[TextChunk, None],
    head: dict[str, Any],
    spell: Spell,
    usage: StreamUsage,
    *,
    has_reasoning: bool,
    has_ids: bool,
) -> AsyncGenerator[bytes, None]:
    """Yields one event per chunk. The first delta of each choice has the role."""
    num_calls: dict[int, int] = {}  # by choice
    async with aclosing(chunks):
        async for chunk in chunks:
            delta: dict[str, Any] = {}
            if chunk.hypothesis not in num_calls:
                num_calls[chunk.hypothesis] = 0
                delta["role"] = "assistant"
            if chunk.reasoning and has_reasoning:
                delta["reasoning_content"] = chunk.reasoning
            if chunk.text or "role" in delta:
                delta["content"] = chunk.text
            first = num_calls[chunk.hypothesis]
            if chunk.tool_calls:
                delta["tool_calls"] = [
                    {"index": index, **call_object(call)}
                    for index, call in enumerate(chunk.tool_calls, first)
                ]
                num_calls[chunk.hypothesis] += len(chunk.tool_calls)
            has_calls = num_calls[chunk.hypothesis] > 0
            finish = chunk.finish
            choice = {
                "index": chunk.hypothesis,
                "delta": delta,
                "logprobs": chat_logprobs(chunk.logprobs, spell) if chunk.logprobs else None,
                "finish_reason": finish and _finish_reason(finish, has_calls=has_calls),
            }
            ids: dict[str, Any] = {}
            if has_ids:
                choice["token_ids"] = chunk.token_ids
                ids = {"prompt_token_ids": chunk.input_ids} if chunk.input_ids else {}
            yield event({**head, "choices": [choice], **ids, **usage.push(chunk)})
    if usage.is_wanted:
        yield event({**head, "choices": [], "usage": usage.total()})
    yield DONE
