"""text-embeddings-inference's API below ``/MODEL``, and at the root for one model."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute

from model.bundle import ScoreFunction
from server.bounds import MAX_TEXTS, Size
from server.errors import Code, InvalidArgumentError
from server.frontends.http import tei_bodies as bodies
from server.frontends.http.endpoint import Api, Call, Context, json_response
from server.frontends.http.failures import (
    Failure,
    MalformedBodyError,
    UnsupportedEncodingError,
)
from server.frontends.http.json_size import MAX_ID_VALUES, MAX_VALUES
from server.frontends.http.tei_embed import embed, embed_all, embed_sparse, similarity
from server.frontends.http.tei_headers import answer_with
from server.frontends.http.tei_info import info
from server.service.classify import Classification, ClassifyRequest
from server.service.input_types import named_prompt
from server.service.rerank import RerankRequest
from server.service.tokenize import DetokenizeRequest, Tokenization, TokenizeRequest

Answer = Callable[[str, Call[Any]], Awaitable[Response]]

# Paths that other protocols use at the root.
_TAKEN = {"/health", "/rerank", "/tokenize"}
NAMES = {  # of the service's fields
    "documents": "texts",
    "pairs": "inputs",
    "long_input": "truncate",
}
# Fields that may have token ids.
_ID_FIELDS = {
    "/decode": "ids",
    **dict.fromkeys(("/embed", "/embed_all", "/embed_sparse"), "inputs"),
}
# text-embeddings-inference's ErrorType and HTTP status, by code.
_ERROR_TYPES = {
    Code.INVALID_ARGUMENT: ("Validation", 413),
    Code.RESOURCE_EXHAUSTED: ("Overloaded", 429),
    Code.UNAVAILABLE: ("Unhealthy", 503),
    Code.INTERNAL: ("Backend", 424),
    Code.DEADLINE_EXCEEDED: ("Backend", 424),
}


def routes(context: Context) -> list[BaseRoute]:
    """The routes with a model in their path, and those without one if ``tei_model`` is set."""
    api = Api(context=context, error=_error_response, status_of=_status_of)
    posts: list[tuple[str, Any, Answer]] = [
        ("/embed", bodies.EmbedBody, embed),
        ("/embed_all", bodies.EmbedAllBody, embed_all),
        ("/embed_sparse", bodies.EmbedSparseBody, embed_sparse),
        ("/predict", bodies.PredictBody, _predict),
        ("/rerank", bodies.RerankBody, rerank),
        ("/similarity", bodies.SimilarityBody, similarity),
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
                made.append(
                    api.post(
                        prefix + path,
                        kind,
                        handler,
                        names={**NAMES, "token_inputs": _ID_FIELDS.get(path, "inputs")},
                        model_of=model_of,
                        max_values=MAX_ID_VALUES if path in _ID_FIELDS else MAX_VALUES,
                    )
                )
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
        if isinstance(error, UnsupportedEncodingError):
            return "Validation", failure.status
        if isinstance(error, MalformedBodyError):
            return "Validation", 422
        if failure.field == "model":
            return "Backend", 424
    return _ERROR_TYPES.get(error.code, ("Validation", failure.status))


def _status_of(failure: Failure) -> int:
    return _error_type(failure)[1]


def _error_response(failure: Failure) -> Response:
    return json_response({"error": failure.message, "error_type": _error_type(failure)[0]})


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

    def encode() -> Response:
        labels = [_labels(output) for output in result.outputs]
        return answer_with(labels if inputs.is_batch else labels[0], result)

    return await call.service.build(result.num_values, encode, call.caller)


def _labels(output: Classification) -> list[dict[str, Any]]:
    return [{"score": label.score, "label": label.label} for label in output.labels]


async def rerank(model: str, call: Call[bodies.RerankBody]) -> Response:
    """Answers ``/rerank``."""
    body = call.body
    request = RerankRequest(
        model=model,
        query=body.query,
        documents=tuple(body.texts),
        score_function=ScoreFunction.IDENTITY if body.raw_scores else None,
        vectors=tuple(body.vectors or ()),
        weights=tuple(body.weights or ()),
        length=bodies.length_of(body),
    )
    result = await call.service.rerank(request, call.caller)

    def encode() -> Response:
        ranks = [
            {"index": output.index}
            | ({"text": body.texts[output.index]} if body.return_text else {})
            | {"score": output.score}
            for output in result.outputs
        ]
        return answer_with(ranks, result)

    return await call.service.build(result.num_values, encode, call.caller)


async def _tokenize(model: str, call: Call[bodies.TokenizeBody]) -> Response:
    body = call.body
    texts = bodies.texts_of(body.inputs)
    if body.prompt_name is not None:
        embedding = call.service.manifest(model).embedding
        Size(MAX_TEXTS).check_count("inputs", texts)
        prompt = named_prompt(embedding, body.prompt_name, "prompt_name")
        texts = tuple(prompt + text for text in texts)
    request = TokenizeRequest(
        model=model,
        inputs=texts,
        without_special_tokens=not body.add_special_tokens,
        with_offsets=True,
    )
    result = await call.service.tokenize(request, call.caller)

    def encode() -> Response:
        pairs = zip(texts, result.outputs, strict=True)
        return answer_with([_tokens(text, output) for text, output in pairs], result)

    return await call.service.build(result.num_values, encode, call.caller)


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
