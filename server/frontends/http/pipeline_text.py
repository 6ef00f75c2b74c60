"""Hugging Face's pipelines that write text: text-generation-inference's ``generate``, translation,
summaries, and texts about images.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from model.config import Kind
from server.errors import InvalidArgumentError
from server.frontends.http.endpoint import Call
from server.frontends.http.event_stream import EventStream, event
from server.frontends.http.fields import options_of
from server.frontends.http.openai.completions import first_tokens
from server.frontends.http.openai.options import check_neutral, json_schema
from server.frontends.http.pipeline_bodies import (
    GENERATION,
    GenerationParameters,
    Parameters,
    PipelineBody,
    PipelineGrammar,
    check_parameters,
    one_text,
    texts_of,
)
from server.frontends.http.pipeline_tasks import file_of
from server.frontends.http.tei_headers import answer_with
from server.service.generation_options import Grammar, GrammarKind, ResponseOptions
from server.service.generation_request import (
    Finish,
    FinishReason,
    GenerateRequest,
    Hypothesis,
    ScoredToken,
    TextChunk,
    TranslateRequest,
)

DEFAULT_MAX_NEW_TOKENS = 100
"""text-generation-inference's default."""

_FINISH_REASONS = {
    FinishReason.STOP: "eos_token",
    FinishReason.STOP_STRING: "stop_sequence",
    FinishReason.LENGTH: "length",
    FinishReason.DEADLINE: "length",
    FinishReason.CANCELLED: "length",
}
_WARPERS = ("temperature", "top_k", "top_p", "typical_p")
_OTHERS = ("best_of", "grammar", "return_full_text", "stop")
_DETAILS = ("details", "decoder_input_details", "top_n_tokens")


@dataclass(frozen=True, slots=True)
class _Spelling:
    """Describes the tokens of a model."""

    call: Call[PipelineBody]
    model: str

    def tokens(self, scored: Sequence[ScoredToken]) -> list[dict[str, Any]]:
        """``{"id", "text", "logprob", "special"}`` of each token."""
        if not scored:
            return []
        service = self.call.service
        special = service.special_ids(self.model)
        texts = service.token_speller(self.model)([token.token_id for token in scored])
        return [
            {
                "id": token.token_id,
                "text": text.decode(errors="replace"),
                "logprob": token.logprob,
                "special": token.token_id in special,
            }
            for token, text in zip(scored, texts, strict=True)
        ]


async def text_generation(model: str, call: Call[PipelineBody]) -> Response | EventStream:
    """Continues a text as text-generation-inference does; summarizes texts; or reads an image."""
    manifest = call.service.manifest(model)
    if not manifest.reads_texts:
        return await image_to_text(model, call)
    is_decoder = manifest.kind == Kind.DECODER
    if not is_decoder and not call.body.stream:
        return await _summaries(model, call)
    given, text = call.body.given, one_text(call.body)
    check_parameters(given, {*GENERATION, *_DETAILS, *_OTHERS})
    check_neutral(given, best_of=(1,))
    if given.decoder_input_details and (call.body.stream or not given.details):
        raise InvalidArgumentError("decoder_input_details", "needs details, and no stream")
    if given.return_full_text and call.body.stream:
        raise InvalidArgumentError("return_full_text", "is not available in a stream")
    default = DEFAULT_MAX_NEW_TOKENS if is_decoder else None
    response = ResponseOptions(
        logprobs=bool(given.details or call.body.stream),
        top_logprobs=given.top_n_tokens or 0,
        prompt_logprobs=bool(given.decoder_input_details),
        echo=bool(given.return_full_text),
    )
    values = {
        **_values(given),
        "model": model,
        "inputs": (text,),
        "max_new_tokens": default if given.max_new_tokens is None else given.max_new_tokens,
        "stop_strings": tuple(given.stop or ()),
        "grammar": _grammar(given.grammar),
        "response": response,
    }
    request = options_of(given, GenerateRequest, values)
    spelling = _Spelling(call, model)
    if call.body.stream:
        chunks = await call.service.generate_stream(request, call.caller)
        return EventStream(_events(chunks, spelling, given))
    firsts = await first_tokens(call, request) if given.decoder_input_details else []
    result = await call.service.generate(request, call.caller)
    (hypothesis,) = result.outputs[0].hypotheses

    def encode() -> Response:
        answer: dict[str, Any] = {"generated_text": hypothesis.text}
        if given.details:
            answer["details"] = _details(hypothesis, spelling, given, firsts)
        return answer_with([answer], result)

    return await call.service.build(result.num_values, encode, call.caller)


def _values(options: GenerationParameters) -> dict[str, Any]:
    """Values of the service's options that have another form here.

    As in text-generation-inference, options of sampling select it.
    """
    samples = options.do_sample or any(getattr(options, name) is not None for name in _WARPERS)
    temperature = 1.0 if options.temperature is None else options.temperature
    return {
        "temperature": temperature if samples else None,
        "beam_size": options.num_beams,
        "grammar": None,
    }


def _grammar(given: PipelineGrammar | None) -> Grammar | None:
    if given is None:
        return None
    if given.type != "regex":
        return json_schema(given.value)
    if not isinstance(given.value, str):
        raise InvalidArgumentError("grammar.regex", "must be a text")
    return Grammar(GrammarKind.REGEX, given.value)


def _details(
    hypothesis: Hypothesis, spelling: _Spelling, given: Parameters, firsts: Sequence[int]
) -> dict[str, Any]:
    finish = hypothesis.finish
    scored = [ScoredToken(id_, "", 0.0) for id_ in firsts]  # has no log-probability
    prefill = spelling.tokens((*scored, *finish.prompt_logprobs))
    for index, token in enumerate(prefill):
        del token["special"]
        if index < len(firsts):
            token["logprob"] = None
    details = {
        **_end(finish, given),
        "prefill": prefill,
        "tokens": spelling.tokens(hypothesis.logprobs),
    }
    if given.top_n_tokens:
        details["top_tokens"] = [spelling.tokens(token.top) for token in hypothesis.logprobs]
    return details


def _end(finish: Finish, given: Parameters) -> dict[str, Any]:
    return {
        "finish_reason": _FINISH_REASONS[finish.reason],
        "generated_tokens": finish.usage.output_tokens,
        "seed": given.seed,
    }


async def _events(
    chunks: AsyncGenerator[TextChunk, None], spelling: _Spelling, given: Parameters
) -> AsyncGenerator[bytes, None]:
    """An event for each token. The texts of the tokens, joined, are the generated text."""
    text, num_events = "", 0
    async with aclosing(chunks):
        async for chunk in chunks:
            text += chunk.text
            tokens = spelling.tokens(chunk.logprobs)
            if not tokens:  # text that a stop string could have begun with, or the end alone
                tokens = [{"id": 0, "text": "", "logprob": 0.0, "special": True}]
            for index, token in enumerate(tokens):
                num_events += 1
                is_last = index == len(tokens) - 1
                token["text"] = chunk.text if is_last else ""
                item: dict[str, Any] = {
                    "index": num_events,
                    "token": token,
                    "generated_text": None,
                    "details": None,
                }
                if given.top_n_tokens and chunk.logprobs:
                    item["top_tokens"] = spelling.tokens(chunk.logprobs[index].top)
                if is_last and chunk.finish is not None:
                    item["generated_text"] = text
                    item["details"] = {
                        **_end(chunk.finish, given),
                        "input_length": chunk.finish.usage.input_tokens,
                    }
                yield event(item)


def _options(
    body: PipelineBody, *others: str, group: str = "generate_parameters"
) -> GenerationParameters:
    """The options of generation, in the parameter ``group`` or beside it."""
    given = body.given
    grouped: GenerationParameters | None = getattr(given, group)
    check_parameters(given, (group, *others, *(() if grouped else GENERATION)))
    options = grouped or given
    check_neutral(options, language=(), task=())
    return options


async def image_to_text(model: str, call: Call[PipelineBody]) -> Response:
    """A text about an image."""
    if call.body.stream:
        raise InvalidArgumentError("stream", "is not supported for images")
    options = _options(call.body, group="generation_parameters")
    images = (await file_of(call, "an image"),)
    values = {**_values(options), "model": model, "images": images}
    request = options_of(options, GenerateRequest, values)
    result = await call.service.generate(request, call.caller)
    text = result.outputs[0].hypotheses[0].text
    return answer_with([{"generated_text": text}], result)


async def _summaries(model: str, call: Call[PipelineBody]) -> Response:
    """Summaries of one or several texts, or what else the model writes."""
    options = _options(call.body)
    values = {**_values(options), "model": model, "inputs": texts_of(call.body)}
    request = options_of(options, GenerateRequest, values)
    result = await call.service.generate(request, call.caller)
    texts = [output.hypotheses[0].text for output in result.outputs]
    return answer_with([{"summary_text": text, "generated_text": text} for text in texts], result)


async def translation(model: str, call: Call[PipelineBody]) -> Response:
    """Translations of one or several texts."""
    options = _options(call.body, "src_lang", "tgt_lang")
    values = {
        **_values(options),
        "model": model,
        "inputs": texts_of(call.body),
        "source_language": call.body.given.src_lang,
        "target_language": call.body.given.tgt_lang,
    }
    request = options_of(options, TranslateRequest, values)
    result = await call.service.translate(request, call.caller)
    texts = [output.hypotheses[0].text for output in result.outputs]
    return answer_with([{"translation_text": text} for text in texts], result)
