"""Rerank as Cohere, Jina and vLLM offer it: ``/v2/rerank``, ``/v1/rerank`` and ``/rerank``."""

import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import BaseRoute

from model.bundle import EmbeddingKind
from server.bounds import MAX_TEXTS, Size
from server.errors import InvalidArgumentError
from server.frontends.http import tei, tei_bodies
from server.frontends.http.body import NOTHING, json_decoder
from server.frontends.http.endpoint import Api, Call, Context, json_response
from server.frontends.http.failures import Failure
from server.frontends.http.openai.usage import prompt_usage
from server.service.encoder_options import LengthOptions, LongInput
from server.service.rerank import RerankRequest, RerankResult
from server.service.tokenize import TokenizeRequest


class Document(msgspec.Struct):
    """A document as an object, which Cohere's API v1 and Jina accept."""

    text: str


class RerankBody(msgspec.Struct, kw_only=True):
    """The body. Cohere's ``max_tokens_per_doc`` truncates each document; vLLM's
    ``truncate_prompt_tokens`` limits query and document together. The protocols have no fields
    ``vectors`` and ``weights``: see :class:`RerankRequest`.
    """

    model: str
    query: str
    documents: list[str | Document]
    top_n: int | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: int | None = None
    truncate_prompt_tokens: int | None = None
    vectors: list[EmbeddingKind] | None = None
    weights: list[float] | None = None


class _Texts(msgspec.Struct, kw_only=True):
    """The fields by which a body is that of text-embeddings-inference: it has only ``texts``."""

    texts: msgspec.Raw = NOTHING
    documents: msgspec.Raw = NOTHING


_decode_texts = json_decoder(_Texts)
_decode_own = json_decoder(RerankBody)
_decode_tei = json_decoder(tei_bodies.RerankBody)


def cohere_error(failure: Failure) -> Response:
    """Formats an error as Cohere does: ``{"message"}``."""
    return json_response({"message": failure.message})


def routes(context: Context) -> list[BaseRoute]:
    """The routes."""
    api = Api(context=context, error=cohere_error)
    default = context.settings.tei_model
    root = api.post("/rerank", RerankBody, _jina, names=_NAMES)
    if default:
        root = api.post(
            "/rerank",
            _decode_either,
            partial(_either, default),
            names=_names_of,
            model_of=lambda call: getattr(call.body, "model", default),
        )
    return [
        api.post("/v2/rerank", RerankBody, _cohere, names=_NAMES),
        api.post("/v1/rerank", RerankBody, _jina, names=_NAMES),
        root,
    ]


_NAMES = {"max_tokens": "truncate_prompt_tokens", "inputs": "documents"}
_Either = RerankBody | tei_bodies.RerankBody


def _decode_either(data: bytes, _: Headers) -> _Either:
    given = _decode_texts(data)
    is_tei = given.texts != NOTHING and given.documents == NOTHING
    return _decode_tei(data) if is_tei else _decode_own(data)


def _names_of(body: _Either) -> Mapping[str, str]:
    return _NAMES if isinstance(body, RerankBody) else tei.NAMES


async def _either(default: str, call: Call[Any]) -> Response:
    """Answers with ``default`` as text-embeddings-inference does, if the body is as there."""
    if isinstance(call.body, RerankBody):
        return await _jina(call)
    return await tei.rerank(default, call)


async def _answer(call: Call[RerankBody]) -> RerankResult:
    """Ranks the documents. Truncates long ones, as Cohere does."""
    body = call.body
    max_tokens = body.truncate_prompt_tokens
    if max_tokens in (0, -1):  # vLLM: the model's limit
        max_tokens = None
    request = RerankRequest(
        model=body.model,
        query=body.query,
        documents=await _documents(call),
        top_n=_top_n(body),
        vectors=tuple(body.vectors or ()),
        weights=tuple(body.weights or ()),
        length=LengthOptions(long_input=LongInput.TRUNCATE_RIGHT, max_tokens=max_tokens),
    )
    return await call.service.rerank(request, call.caller)


def _text(document: str | Document) -> str:
    return document if isinstance(document, str) else document.text


async def _documents(call: Call[RerankBody]) -> tuple[str, ...]:
    """The texts, truncated to ``max_tokens_per_doc`` tokens; special tokens do not count."""
    body, max_tokens = call.body, call.body.max_tokens_per_doc or 0
    Size(MAX_TEXTS).check_count("documents", body.documents)
    texts = tuple(map(_text, body.documents))
    if max_tokens < 0:
        raise InvalidArgumentError("max_tokens_per_doc", f"{max_tokens} is negative")
    if not 0 < max_tokens < call.service.get_model(body.model).max_length:
        return texts  # the model truncates
    request = TokenizeRequest(
        model=body.model, inputs=texts, without_special_tokens=True, with_offsets=True
    )
    result = await call.service.tokenize(request, call.caller)
    ends = [
        max((span[1] for span in output.offsets[:max_tokens] if span is not None), default=None)
        for output in result.outputs
    ]
    return tuple(text[:end] for text, end in zip(texts, ends, strict=True))


def _top_n(body: RerankBody) -> int | None:
    """The number of documents to return. ``None`` means all; vLLM's clients send 0 for it."""
    if body.top_n is not None and body.top_n < 0:
        raise InvalidArgumentError("top_n", f"{body.top_n} is negative")
    return body.top_n or None


async def _cohere(call: Call[RerankBody]) -> Response:
    with_documents = bool(call.body.return_documents)
    result = await _answer(call)

    def encode() -> Response:
        return json_response(
            {
                "id": str(uuid.uuid4()),
                "results": _results(call, result, with_documents=with_documents),
                "meta": {
                    "api_version": {"version": "2"},
                    "billed_units": {"search_units": 1},
                    "tokens": {"input_tokens": result.usage.input_tokens, "output_tokens": 0},
                },
            }
        )

    return await call.service.build(result.num_values, encode, call.caller)


async def _jina(call: Call[RerankBody]) -> Response:
    # Jina and vLLM return the documents unless told otherwise.
    with_documents = call.body.return_documents is not False
    result = await _answer(call)

    def encode() -> Response:
        return json_response(
            {
                "id": f"rerank-{uuid.uuid4().hex}",
                "model": result.model,
                "usage": prompt_usage(result.usage),
                "results": _results(call, result, with_documents=with_documents),
            }
        )

    return await call.service.build(result.num_values, encode, call.caller)


def _results(
    call: Call[RerankBody], result: RerankResult, *, with_documents: bool
) -> list[dict[str, Any]]:
    """The results in the order of their ranks, optionally with the documents."""
    documents = call.body.documents
    return [
        {"index": output.index, "relevance_score": output.score}
        | ({"document": {"text": _text(documents[output.index])}} if with_documents else {})
        for output in result.outputs
    ]
