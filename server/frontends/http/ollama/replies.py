"""Ollama's replies: one JSON object, or a stream with one on each line."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.responses import Response

from server.frontends.http.endpoint import Call, json_response
from server.frontends.http.event_stream import EventStream
from server.frontends.http.failures import Failure
from server.frontends.http.openai.logprobs import Spell, token_list
from server.frontends.http.openai.options import FINISH_REASONS
from server.service.generation_request import (
    Finish,
    GenerateRequest,
    ScoredToken,
    ToolCall,
    json_object,
)
from server.service.usage import Timing, Usage

_MEDIA_TYPE = "application/x-ndjson"
_NANOSECONDS = 1e9
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Content:
    """A part of an answer, or all of it."""

    text: str = ""
    thinking: str = ""
    calls: Sequence[ToolCall] = ()
    first_call: int = 0  # the number of calls before


Fields = Callable[[Content], dict[str, Any]]
"""Makes the fields of a content in the reply of a route."""


def message_fields(content: Content) -> dict[str, Any]:
    """The fields of ``/api/chat``: a message."""
    message: dict[str, Any] = {"role": "assistant", "content": content.text}
    if content.thinking:
        message["thinking"] = content.thinking
    if content.calls:
        message["tool_calls"] = [
            _call(call, index) for index, call in enumerate(content.calls, content.first_call)
        ]
    return {"message": message}


def response_fields(content: Content) -> dict[str, Any]:
    """The fields of ``/api/generate``: a text."""
    response = {"response": content.text}
    return response | {"thinking": content.thinking} if content.thinking else response


def _call(call: ToolCall, index: int) -> dict[str, Any]:
    arguments = json_object(call.arguments, "arguments")
    return {"id": call.id, "function": {"index": index, "name": call.name, "arguments": arguments}}


def without_output(name: str, fields: Fields, reason: str) -> Response:
    """The reply to a request without a prompt."""
    return json_response({**_head(name), **fields(Content()), "done": True, "done_reason": reason})


async def answer(
    call: Call[Any], request: GenerateRequest, fields: Fields, *, has_thinking: bool
) -> Response | EventStream:
    """Generates the answer, as one object or a stream of them."""
    name = call.body.model
    spell = call.service.token_speller(request.model)
    if call.body.stream:
        chunks = await call.service.generate_stream(request, call.caller)
        lines = _lines(chunks, name, fields, spell, has_thinking=has_thinking)
        return EventStream(lines, media_type=_MEDIA_TYPE, error_event=error_line)
    result = await call.service.generate(request, call.caller)
    ((hypothesis,),) = (output.hypotheses for output in result.outputs)

    def encode() -> Response:
        thinking = hypothesis.reasoning if has_thinking else ""
        content = Content(hypothesis.text, thinking, hypothesis.tool_calls)
        return json_response(
            {
                **_head(name),
                **fields(content),
                **_logprobs(hypothesis.logprobs, spell),
                **_end(hypothesis.finish),
            }
        )

    return await call.service.build(result.num_values, encode, call.caller)


async def _lines(
    chunks: AsyncGenerator[Any, None],
    name: str,
    fields: Fields,
    spell: Spell,
    *,
    has_thinking: bool,
) -> AsyncGenerator[bytes, None]:
    """Yields a line for each chunk, and the end on a line of its own."""
    num_calls = 0
    async with aclosing(chunks):
        async for chunk in chunks:
            thinking = chunk.reasoning if has_thinking else ""
            content = Content(chunk.text, thinking, chunk.tool_calls, num_calls)
            num_calls += len(chunk.tool_calls)
            line = b""
            if chunk.text or thinking or chunk.tool_calls or chunk.logprobs:
                scored = _logprobs(chunk.logprobs, spell)
                line = _line({**_head(name), **fields(content), **scored, "done": False})
            if chunk.finish is not None:
                line += _line({**_head(name), **fields(Content()), **_end(chunk.finish)})
            if line:
                yield line


def error_line(failure: Failure) -> bytes:
    """The line of an error within a stream."""
    return _line({"error": failure.message})


def _line(value: Any) -> bytes:
    return _encode(value) + b"\n"


def _head(name: str) -> dict[str, Any]:
    return {"model": name, "created_at": datetime.now(UTC)}


def _logprobs(tokens: Sequence[ScoredToken], spell: Spell) -> dict[str, Any]:
    return {"logprobs": token_list(tokens, spell)} if tokens else {}


def _end(finish: Finish) -> dict[str, Any]:
    return {
        "done": True,
        "done_reason": FINISH_REASONS[finish.reason],
        **durations(finish.timing),
        **counts(finish.usage),
        "prompt_eval_duration": nanoseconds(finish.timing.prefill_seconds),
        "eval_duration": nanoseconds(finish.timing.decode_seconds),
    }


def durations(timing: Timing) -> dict[str, int]:
    """The durations of any call. Models are loaded before they are called."""
    return {"total_duration": nanoseconds(timing.total_seconds), "load_duration": 0}


def counts(usage: Usage) -> dict[str, int]:
    """The tokens of a prompt, and of an answer."""
    return {"prompt_eval_count": usage.input_tokens, "eval_count": usage.output_tokens}


def nanoseconds(seconds: float) -> int:
    """A duration as Ollama has it."""
    return round(_NANOSECONDS * seconds)
