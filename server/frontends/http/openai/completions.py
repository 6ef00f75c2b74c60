"""``/v1/completions``."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec
from starlette.responses import Response

from server.errors import InvalidArgumentError
from server.frontends.http.body import NOTHING
from server.frontends.http.endpoint import Call, json_response
from server.frontends.http.event_stream import DONE, EventStream, event
from server.frontends.http.openai.logprobs import Spelling, completion_logprobs
from server.frontends.http.openai.options import (
    FINISH_REASONS,
    GenerationFields,
    body_type,
    check_neutral,
    generate_request,
    sent_names,
)
from server.frontends.http.openai.prompts import Texts, texts_or_tokens
from server.frontends.http.openai.stream_usage import StreamUsage
from server.frontends.http.openai.usage import completion_usage
from server.service.generation_request import (
    FinishReason,
    GenerateRequest,
    GenerationResult,
    Hypothesis,
    TextChunk,
)
from server.service.tokenize import DetokenizeRequest, TokenizeRequest

DEFAULT_MAX_TOKENS = 16
"""The default of OpenAI and vLLM."""


class CompletionFields(GenerationFields, kw_only=True):
    """The body. Fields from ``best_of`` are rejected unless their values have no effect."""

    prompt: Texts
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: msgspec.Raw = NOTHING
    metadata: msgspec.Raw = NOTHING


CompletionBody = body_type(CompletionFields)


def completion_names(body: Any) -> dict[str, str]:
    """The names that ``body`` uses for the service's fields."""
    return {**sent_names(body), "top_logprobs": "logprobs"}


async def completions(call: Call[Any]) -> Response | EventStream:
    """Continues prompts, streamed or not. Choice ``p * n + i`` is output i of prompt p.

    With ``echo``, ``max_tokens`` may be 0: the choices are the prompts alone.
    """
    body = call.body
    check_neutral(body, best_of=(body.n or 1,), suffix=(), add_special_tokens=(True,))
    inputs, token_inputs = texts_or_tokens(body.prompt, "prompt")
    echo = bool(body.echo)
    wants_logprobs = body.logprobs is not None
    is_prompt_alone = echo and body.max_tokens == 0 and not body.stream
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if echo and wants_logprobs and body.stream:
        raise InvalidArgumentError("echo", "with logprobs is not streamed")
    request = generate_request(
        body,
        inputs=inputs,
        token_inputs=token_inputs,
        max_new_tokens=1 if is_prompt_alone else max_tokens,
        logprobs=wants_logprobs,
        top_logprobs=body.logprobs,
        prompt_logprobs=echo and wants_logprobs,
    )
    head = {
        "id": f"cmpl-{call.request_id}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": body.model,
    }
    service = call.service
    spelling = Spelling(service.token_speller(body.model), service.special_ids(body.model))
    num_outputs = body.n or 1
    if body.stream:
        chunks = await call.service.generate_stream(request, call.caller)
        usage = StreamUsage(body.stream_options)
        return EventStream(_events(chunks, head, spelling, num_outputs, usage))
    firsts = await first_tokens(call, request) if request.response.prompt_logprobs else []
    result = await call.service.generate(request, call.caller)
    if is_prompt_alone:
        result = await _prompts_alone(call, request, result)

    def encode() -> Response:
        choices = []
        for index, output in enumerate(result.outputs):
            first = firsts[index] if firsts else None
            for number, hypothesis in enumerate(output.hypotheses):
                place = index * num_outputs + number
                choices.append(_choice(place, hypothesis, spelling, output.hypotheses[0], first))
        return json_response({**head, "choices": choices, "usage": completion_usage(result.usage)})

    return await call.service.build(result.num_values, encode, call.caller)


async def first_tokens(call: Call[Any], request: GenerateRequest) -> list[int]:
    """The first token of each prompt, which has no log-probability."""
    if request.token_inputs:
        return [ids[0] for ids in request.token_inputs if ids]
    tokenized = await call.service.tokenize(
        TokenizeRequest(model=request.model, inputs=request.inputs), call.caller
    )
    return [output.token_ids[0] for output in tokenized.outputs]


async def _prompts_alone(
    call: Call[Any], request: GenerateRequest, result: GenerationResult
) -> GenerationResult:
    """``result`` without its generated tokens: with the echoed prompts alone."""
    texts = request.inputs
    if request.token_inputs:
        prompts = DetokenizeRequest(model=request.model, token_inputs=request.token_inputs)
        texts = (await call.service.detokenize(prompts, call.caller)).texts
    outputs = []
    for text, output in zip(texts, result.outputs, strict=True):
        hypotheses = tuple(
            replace(
                hypothesis,
                text=text,
                logprobs=(),
                finish=replace(hypothesis.finish, reason=FinishReason.LENGTH),
            )
            for hypothesis in output.hypotheses
        )
        outputs.append(replace(output, hypotheses=hypotheses))
    usage = replace(result.usage, output_tokens=0)
    return replace(result, outputs=tuple(outputs), usage=usage)


def _choice(
    index: int, hypothesis: Hypothesis, spelling: Spelling, best: Hypothesis, first: int | None
) -> dict[str, Any]:
    """Makes a choice. ``best`` carries the log-probabilities of the prompt."""
    scored = (*best.finish.prompt_logprobs, *hypothesis.logprobs)
    has_logprobs = bool(scored) or first is not None
    return {
        "index": index,
        "text": hypothesis.text,
        "logprobs": completion_logprobs(scored, spelling, 0, first) if has_logprobs else None,
        "finish_reason": FINISH_REASONS[hypothesis.finish.reason],
    }


async def _events(
    chunks: AsyncGenerator[TextChunk, None],
    head: dict[str, Any],
    spelling: Spelling,
    num_outputs: int,
    usage: StreamUsage,
) -> AsyncGenerator[bytes, None]:
    # By choice: the end of its tokens so far, in characters. Their text may arrive later.
    ends: dict[int, int] = {}
    async with aclosing(chunks):
        async for chunk in chunks:
            place = chunk.index * num_outputs + chunk.hypothesis
            logprobs = None
            if chunk.logprobs:
                logprobs = completion_logprobs(chunk.logprobs, spelling, ends.get(place, 0))
                length = spelling.length(chunk.logprobs[-1].token_id, logprobs["tokens"][-1])
                ends[place] = logprobs["text_offset"][-1] + length
            finish = chunk.finish
            choice = {
                "index": place,
                "text": chunk.text,
                "logprobs": logprobs,
                "finish_reason": None if finish is None else FINISH_REASONS[finish.reason],
            }
            yield event({**head, "choices": [choice], **usage.push(chunk)})
    if usage.is_wanted:
        yield event({**head, "choices": [], "usage": usage.total()})
    yield DONE
