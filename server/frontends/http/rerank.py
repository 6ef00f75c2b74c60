"""Rerank as Cohere, Jina and vLLM offer it: ``/v2/rerank``, ``/v1/rerank`` and ``/rerank``."""

import uuid
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute

from server.errors import InvalidArgumentError
from server.frontends.http.endpoint import Api, Call, Context, json_response
from server.frontends.http.failures import Failure
from server.service.encoder_options import LengthOptions, LongInput
from server.service.rerank import RerankRequest, RerankResult


class Document(msgspec.Struct):
    """A document as an object, which Cohere's first version and Jina accept."""

    text: str


class RerankBody(msgspec.Struct, kw_only=True):
    """``max_tokens_per_doc`` (Cohere) or ``truncate_prompt_tokens`` (vLLM) truncate documents."""

    model: str
    query: str
    documents: list[str | Document]
    top_n: int | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: int | None = None
    truncate_prompt_tokens: int | None = None


def cohere_error(failure: Failure) -> Response:
    """``{"message"}``, as Cohere's service answers."""
    return json_response({"message": failure.message})


def routes(context: Context) -> list[BaseRoute]:
    """The routes."""
    api = Api(context=context, error=cohere_error)
    names = {"max_tokens": "max_tokens_per_doc"}
    return [
        api.post("/v2/rerank", RerankBody, _cohere, names=names),
        api.post("/v1/rerank", RerankBody, _jina, names=names),
        api.post("/rerank", RerankBody, _jina, names=names),
    ]


async def answer(call: Call[RerankBody], *, returns_documents: bool) -> RerankResult:
    """Ranks the documents. Longer ones are truncated, as Cohere does."""
    body = call.body
    max_tokens = body.max_tokens_per_doc or body.truncate_prompt_tokens
    if max_tokens == -1:  # vLLM: the model's limit
        max_tokens = None
    request = RerankRequest(
        model=body.model,
        query=body.query,
        documents=tuple(
            document if isinstance(document, str) else document.text for document in body.documents
        ),
        top_n=_top_n(body),
        return_documents=returns_documents,
        length=LengthOptions(long_input=LongInput.TRUNCATE_RIGHT, max_tokens=max_tokens),
    )
    return await call.service.rerank(request, call.caller)


def _top_n(body: RerankBody) -> int | None:
    """vLLM sends 0 for all, and more than there are documents is all of them."""
    if body.top_n is not None and body.top_n < 0:
        raise InvalidArgumentError("top_n", f"{body.top_n} is negative")
    return body.top_n or None


async def _cohere(call: Call[RerankBody]) -> Response:
    body = call.body
    result = await answer(call, returns_documents=bool(body.return_documents))
    return json_response(
        {
            "id": str(uuid.uuid4()),
            "results": [
                {"index": output.index, "relevance_score": output.score}
                | ({"document": {"text": output.document}} if body.return_documents else {})
                for output in result.outputs
            ],
            "meta": {
                "api_version": {"version": "2"},
                "billed_units": {"search_units": 1},
                "tokens": {"input_tokens": result.usage.input_tokens, "output_tokens": 0},
            },
        }
    )


async def _jina(call: Call[RerankBody]) -> Response:
    # Jina and vLLM return the documents unless told otherwise.
    with_documents = call.body.return_documents is not False
    result = await answer(call, returns_documents=with_documents)
    return json_response(jina_result(result, with_documents=with_documents))


def jina_result(result: RerankResult, *, with_documents: bool) -> dict[str, Any]:
    """The body of Jina's and vLLM's response."""
    return {
        "id": f"rerank-{uuid.uuid4().hex}",
        "model": result.model,
        "usage": {
            "prompt_tokens": result.usage.input_tokens,
            "total_tokens": result.usage.input_tokens,
        },
        "results": [
            {"index": output.index, "relevance_score": output.score}
            | ({"document": {"text": output.document}} if with_documents else {})
            for output in result.outputs
        ],
    }
