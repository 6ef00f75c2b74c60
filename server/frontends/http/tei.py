"""text-embeddings-inference's API below ``/MODEL``, and at the root for one model."""

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute

from model.bundle import ScoreFunction
from server.errors import Code, InvalidArgumentError
from server.frontends.http import tei_bodies as bodies
from server.frontends.http.endpoint import Api, Call, Context, json_response
from server.frontends.http.failures import Failure, MalformedBodyError
from server.frontends.http.tei_info import info
from server.service.classify import Classification, ClassifyRequest
from server.service.embed import EmbedRequest, EmbedResult
from server.service.rerank import RerankRequest
from server.service.tokenize import DetokenizeRequest, Tokenization, TokenizeRequest
from server.service.usage import Timing, Usage

Answer = Callable[[str, Call[Any]], Awaitable[Response]]

# Paths that other protocols have at the root.
_TAKEN = {"/health", "/rerank", "/tokenize"}
_NAMES = {
    "documents": "texts",
    "pairs": "inputs",
    "token_inputs": "ids",
    "long_input": "truncate",
}
# As text-embeddings-inference's ErrorType.
_ERROR_TYPES = {
    Code.INVALID_ARGUMENT: ("Validation", 413),
    Code.RESOURCE_EXHAUSTED: ("Overloaded", 429),
    Code.UNAVAILABLE: ("Unhealthy", 503),
    Code.INTERNAL: ("Backend", 424),
    Code.DEADLINE_EXCEEDED: ("Backend", 424),
}


def routes(context: Context) -> list[BaseRoute]:
    """The routes of every model; without a model those of ``tei_model``, if there is one."""
    api = Api(context=context, error=_error_response, status_of=_status_of)
    posts: list[tuple[str, Any, Answer]] = [
        ("/embed", bodies.EmbedBody, _embed),
        ("/embed_all", bodies.EmbedAllBody, _embed_all),
        ("/embed_sparse", bodies.EmbedAllBody, _embed_sparse),
        ("/predict", bodies.PredictBody, _predict),
        ("/rerank", bodies.RerankBody, _rerank),
        ("/similarity", bodies.SimilarityBody, _similarity),
        ("/tokenize", bodies.TokenizeBody, _tokenize),
        ("/decode", bodies.DecodeBody, _decode),
    ]
    gets: list[tuple[str, Answer]] = [("/info", info), ("/health", _health)]
    default = context.settings.tei_model
    made: list[BaseRoute] = []
    for prefix, model_of in (
        ("", lambda _: default),
        ("/{model}", lambda call: call.path_params["model"]),
    ):
        if not prefix and not default:
            continue
        for path, kind, answer in posts:
            if prefix or path not in _TAKEN:
                handler = partial(_call, model_of, answer)
                made.append(api.post(prefix + path, kind, handler, names=_NAMES, model_of=model_of))
        for path, answer in gets:
            if prefix or path not in _TAKEN:
                made.append(api.get(prefix + path, partial(_call, model_of, answer)))
    return made


async def _call(model_of: Callable[[Call[Any]], str], answer: Answer, call: Call[Any]) -> Response:
    return await answer(model_of(call), call)


def _error_type(failure: Failure) -> tuple[str, int]:
    error = failure.error
    if isinstance(error, InvalidArgumentError):
        if error.description in {"must not be empty", "is empty"}:
            return "Empty", 400
        if isinstance(error, MalformedBodyError):
            return "Validation", 422
        if failure.field == "model":
            return "Backend", 424
    return _ERROR_TYPES.get(error.code, ("Validation", failure.status))


def _status_of(failure: Failure) -> int:
    return _error_type(failure)[1]


def _error_response(failure: Failure) -> Response:
    return json_response({"error": failure.message, "error_type": _error_type(failure)[0]})


def _headers(usage: Usage, timing: Timing) -> dict[str, str]:
    """Times in milliseconds."""

    def milliseconds(seconds: float) -> str:
        return str(int(seconds * 1000))

    return {
        "x-compute-type": "cpu",
        "x-compute-time": milliseconds(timing.total_seconds),
        "x-compute-tokens": str(usage.input_tokens),
        "x-total-time": milliseconds(timing.total_seconds),
        "x-tokenization-time": milliseconds(timing.tokenize_seconds),
        "x-queue-time": milliseconds(timing.queue_seconds),
        "x-inference-time": milliseconds(timing.prefill_seconds),
    }


def _answer(value: Any, result: Any) -> Response:
    return json_response(value, headers=_headers(result.usage, result.timing))


async def _embed(model: str, call: Call[bodies.EmbedBody]) -> Response:
    body = call.body
    options = {"dimensions": body.dimensions, "normalize": body.normalize}
    result = await _vectors(model, call, bodies.texts_of(body.inputs), **options)
    return _answer([output.vector.tolist() for output in result.outputs], result)


async def _vectors(
    model: str, call: Call[Any], texts: tuple[str, ...], **options: Any
) -> EmbedResult:
    body = call.body
    request = EmbedRequest(
        model=model,
        inputs=texts,
        prompt_name=body.prompt_name,
        length=bodies.length_of(body),
        **options,
    )
    return await call.service.embed(request, call.caller)


async def _embed_all(model: str, call: Call[bodies.EmbedAllBody]) -> Response:
    texts = bodies.texts_of(call.body.inputs)
    result = await _vectors(model, call, texts, token_embeddings=True)
    return _answer(
        [
            output.tokens.vectors.tolist() if output.tokens is not None else []
            for output in result.outputs
        ],
        result,
    )


async def _embed_sparse(model: str, call: Call[bodies.EmbedAllBody]) -> Response:
    advice = "use /embed" if call.service.get_model(model).image is None else "it takes images"
    raise InvalidArgumentError("model", f"{model!r} has no sparse vectors; {advice}")


async def _predict(model: str, call: Call[bodies.PredictBody]) -> Response:
    body = call.body
    inputs = bodies.predict_inputs(body.inputs)
    request = ClassifyRequest(
        model=model,
        inputs=inputs.texts,
        pairs=inputs.pairs,
        score_function=ScoreFunction.IDENTITY if body.raw_scores else None,
        length=bodies.length_of(body),
    )
    result = await call.service.classify(request, call.caller)
    labels = [_labels(output) for output in result.outputs]
    return _answer(labels if inputs.is_batch else labels[0], result)


def _labels(output: Classification) -> list[dict[str, Any]]:
    return [{"score": label.score, "label": label.label} for label in output.labels]


async def _rerank(model: str, call: Call[bodies.RerankBody]) -> Response:
    body = call.body
    request = RerankRequest(
        model=model,
        query=body.query,
        documents=tuple(body.texts),
        score_function=ScoreFunction.IDENTITY if body.raw_scores else None,
        length=bodies.length_of(body),
    )
    result = await call.service.rerank(request, call.caller)
    ranks = [
        {"index": output.index}
        | ({"text": body.texts[output.index]} if body.return_text else {})
        | {"score": output.score}
        for output in result.outputs
    ]
    return _answer(ranks, result)


async def _similarity(model: str, call: Call[bodies.SimilarityBody]) -> Response:
    """Cosines of one text to others."""
    inputs, parameters = call.body.inputs, call.body.parameters
    request = EmbedRequest(
        model=model,
        inputs=(inputs.source_sentence, *inputs.sentences),
        prompt_name=parameters.prompt_name,
        normalize=True,
        length=bodies.length_of(parameters),
    )
    if not inputs.sentences:
        raise InvalidArgumentError("inputs.sentences", "must not be empty")
    try:
        result = await call.service.embed(request, call.caller)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(_similarity_field(error.field), error.description) from None
    first, *others = (output.vector for output in result.outputs)
    return _answer([float(first @ other) for other in others], result)


def _similarity_field(field: str) -> str:
    """Texts are the first sentence and the others; ``field`` counts all of them."""
    text = re.fullmatch(r"inputs\[(\d+)\]", field)
    if text is None:
        return field
    index = int(text[1])
    return f"inputs.sentences[{index - 1}]" if index else "inputs.source_sentence"


async def _tokenize(model: str, call: Call[bodies.TokenizeBody]) -> Response:
    body = call.body
    texts = bodies.texts_of(body.inputs)
    request = TokenizeRequest(
        model=model,
        inputs=texts,
        without_special_tokens=not body.add_special_tokens,
        with_offsets=True,
    )
    result = await call.service.tokenize(request, call.caller)
    return _answer(
        [_tokens(text, output) for text, output in zip(texts, result.outputs, strict=True)], result
    )


def _tokens(text: str, output: Tokenization) -> list[dict[str, Any]]:
    return [
        {
            "id": id_,
            "text": token if span is None else text[slice(*span)],
            "special": span is None,
            "start": None if span is None else span[0],
            "stop": None if span is None else span[1],
        }
        for id_, token, span in zip(output.token_ids, output.tokens, output.offsets, strict=True)
    ]


async def _decode(model: str, call: Call[bodies.DecodeBody]) -> Response:
    if not call.body.skip_special_tokens:
        raise InvalidArgumentError("skip_special_tokens", "must be true")
    request = DetokenizeRequest(model=model, token_inputs=bodies.ids_of(call.body.ids))
    result = await call.service.detokenize(request, call.caller)
    return json_response(list(result.texts))


async def _health(model: str, call: Call[None]) -> Response:
    call.service.get_model(model)
    return Response()
