"""``/v1/completions``."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec
from starlette.responses import Response

from server.errors import InvalidArgumentError
from server.frontends.http.body import NOTHING
from server.frontends.http.endpoint import Call, json_response
from server.frontends.http.event_stream import DONE, EventStream, event
from server.frontends.http.openai.logprobs import (
    Spelling,
    completion_logprobs,
    num_prompt_logprobs,
    prompt_logprobs,
    with_top,
)
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
    ScoredToken,
    TextChunk,
)
from server.service.tokenize import DetokenizeRequest, TokenizeRequest

DEFAULT_MAX_TOKENS = 16
"""The default of OpenAI and vLLM."""


class CompletionFields(GenerationFields, kw_only=True):
    """The body. Fields from ``best_of`` are rejected unless their values have no effect."""

    prompt: Texts
    logprobs: int | None = None
    prompt_logprobs: int | None = None  # type: ignore[assignment]
    return_token_ids: bool | None = None  # type: ignore[assignment]
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    add_special_tokens: msgspec.Raw = NOTHING
    metadata: msgspec.Raw = NOTHING


CompletionBody = body_type(CompletionFields)


def completion_names(body: Any) -> dict[str, str]:
    """The names that ``body`` uses for the service's fields."""
    return {**sent_names(body), "top_logprobs": _top_field(body)}


def _top_field(body: Any) -> str:
    """The field with the larger number of most likely tokens, or the one that is negative."""
    is_less = 0 <= (body.logprobs or 0) < (body.prompt_logprobs or 0)
    return "prompt_logprobs" if is_less else "logprobs"


async def completions(call: Call[Any]) -> Response | EventStream:
    """Continues prompts, streamed or not. Choice ``p * n + i`` is output i of prompt p.

    With ``echo``, ``max_tokens`` may be 0: the choices are the prompts alone.
    """
    body = call.body
    check_neutral(body, best_of=(body.n or 1,), add_special_tokens=(True,))
    inputs, token_inputs = texts_or_tokens(body.prompt, "prompt")
    echo = bool(body.echo)
    wants_logprobs = body.logprobs is not None
    is_prompt_alone = echo and body.max_tokens == 0 and not body.stream
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if echo and wants_logprobs and body.stream:
        raise InvalidArgumentError("echo", "with logprobs is not streamed")
    num_prompt = num_prompt_logprobs(body)
    request = generate_request(
        body,
        inputs=inputs,
        token_inputs=token_inputs,
        max_new_tokens=1 if is_prompt_alone else max_tokens,
        logprobs=wants_logprobs,
        top_logprobs=getattr(body, _top_field(body)),
        prompt_logprobs=(echo and wants_logprobs) or num_prompt is not None,
        token_ids=body.return_token_ids,
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
        has_ids = bool(body.return_token_ids)
        return EventStream(_events(chunks, head, spelling, num_outputs, usage, has_ids=has_ids))
    firsts = await first_tokens(call, request) if echo and wants_logprobs else []
    result = await call.service.generate(request, call.caller)
    if is_prompt_alone:
        result = await _prompts_alone(call, request, result)

    def encode() -> Response:
        choices = []
        for index, output in enumerate(result.outputs):
            first = firsts[index] if firsts else None
            prompt = output.hypotheses[0].finish.prompt_logprobs
            for number, hypothesis in enumerate(output.hypotheses):
                scored = (*(prompt if firsts else ()), *hypothesis.logprobs)
                if num_prompt is not None:
                    scored = with_top(scored, body.logprobs or 0)
                place = index * num_outputs + number
                choice = _choice(place, hypothesis, spelling, scored, first)
                choices.append(choice | _ids(hypothesis, has_ids=bool(body.return_token_ids)))
            if num_prompt is not None:
                described = prompt_logprobs(prompt, num_prompt, spelling.spell)
                choices[index * num_outputs]["prompt_logprobs"] = described
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
    index: int,
    hypothesis: Hypothesis,
    spelling: Spelling,
    scored: Sequence[ScoredToken],
    first: int | None,
) -> dict[str, Any]:
    """Makes a choice. ``scored``: its tokens with log-probabilities; ``first`` has none."""
    has_logprobs = bool(scored) or first is not None
    return {
        "index": index,
        "text": hypothesis.text,
        "logprobs": completion_logprobs(scored, spelling, 0, first) if has_logprobs else None,
        "finish_reason": FINISH_REASONS[hypothesis.finish.reason],
    }


def _ids(part: Hypothesis | TextChunk, *, has_ids: bool) -> dict[str, Any]:
    """vLLM's fields with the tokens of a choice and, in the first of a prompt, with its own."""
    if not has_ids:
        return {}
    return {"token_ids": part.token_ids, "prompt_token_ids": part.input_ids or None}


async def _events(
    chunks: AsyncGenerator[TextChunk, None],
    head: dict[str, Any],
    spelling: Spelling,
    num_outputs: int,
    usage: StreamUsage,
    *,
    has_ids: bool,
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
                **_ids(chunk, has_ids=has_ids),
            }
            yield event({**head, "choices": [choice], **usage.push(chunk)})
    if usage.is_wanted:
        yield event({**head, "choices": [], "usage": usage.total()})
    yield DONE
