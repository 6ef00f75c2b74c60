"""Cohere's embedding routes ``/v2/embed`` and ``/v1/embed``."""

import uuid
from typing import Any, Literal, TypeAlias

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute

from model.bundle import EmbeddingKind
from server.errors import InvalidArgumentError
from server.frontends.http.embedding_kinds import (
    Encoding,
    Vectors,
    check_kind,
    encoded,
    input_type_of,
    required,
)
from server.frontends.http.endpoint import Api, Call, Context, json_response
from server.frontends.http.images import Images
from server.frontends.http.rerank import cohere_error
from server.service.embedding import EmbedRequest
from server.service.encoder_options import LengthOptions, LongInput
from server.service.model_info import ModelInfo
from server.service.usage import Usage

_LONG_INPUTS = {
    "NONE": LongInput.ERROR,
    "START": LongInput.TRUNCATE_LEFT,
    "END": LongInput.TRUNCATE_RIGHT,
}


InputTypes: TypeAlias = Literal[
    "search_document", "search_query", "classification", "clustering", "image"
]


class EmbedBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts, or images as ``data:`` URLs. ``priority`` has no effect."""

    model: str
    input_type: InputTypes
    texts: list[str] | None = None
    images: list[str] | None = None
    max_tokens: int | None = None
    output_dimension: int | None = None
    embedding_types: list[Encoding] | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    priority: int | None = None


class EmbedV1Body(EmbedBody, kw_only=True, forbid_unknown_fields=True):
    """The same of the API's version 1, which LangChain's client uses."""

    input_type: InputTypes | None = None  # type: ignore[assignment]


def routes(context: Context) -> list[BaseRoute]:
    """The routes."""
    api = Api(context=context, error=cohere_error)
    names = {"inputs": "texts", "dimensions": "output_dimension", "long_input": "truncate"}
    return [
        api.post("/v2/embed", EmbedBody, _embed, names=names),
        api.post("/v1/embed", EmbedV1Body, _embed, names=names),
    ]


async def _embed(call: Call[EmbedBody]) -> Response:
    body = call.body
    if body.texts is not None and body.images is not None:
        raise InvalidArgumentError("images", "cannot be combined with texts")
    model = call.service.get_model(body.model)
    check_kind(model, EmbeddingKind.DENSE)
    images = Images(images=body.images or [], field="images", path="images[{}]")
    long_input = None if images.images else _LONG_INPUTS[body.truncate or "END"]
    request = EmbedRequest(
        model=body.model,
        inputs=tuple(body.texts or ()),
        images=await images.files(call),
        dimensions=body.output_dimension,
        length=LengthOptions(long_input=long_input, max_tokens=body.max_tokens),
        **({} if images.images else _purpose(body, model)),
    )
    with images.named():
        result = await call.service.embed(request, call.caller)
    vectors = [required(output.vector) for output in result.outputs]
    return await call.service.build(
        result.num_values, lambda: _response(body, vectors, result.usage), call.caller
    )


def _purpose(body: EmbedBody, model: ModelInfo) -> dict[str, Any]:
    """Selects the model's prompt that is named like the input type, else queries or documents."""
    if model.embedding is not None and body.input_type in model.embedding.prompts:
        return {"prompt_name": body.input_type}
    return {"input_type": input_type_of(body.input_type)}


def _response(body: EmbedBody, vectors: list[Vectors], usage: Usage) -> Response:
    encodings: list[Encoding] = body.embedding_types or ["float"]
    embeddings: Any = {
        name: [encoded(vector, name) for vector in vectors]
        for name in dict.fromkeys(encodings)  # without duplicates
    }
    is_v1 = isinstance(body, EmbedV1Body)
    kind = "embeddings_by_type"
    if is_v1 and not body.embedding_types:
        kind, embeddings = "embeddings_floats", embeddings["float"]
    tokens = {"input_tokens": usage.input_tokens}
    return json_response(
        {
            "id": str(uuid.uuid4()),
            "response_type": kind,
            "embeddings": embeddings,
            "texts": body.texts or [],
            "meta": {
                "api_version": {"version": "1" if is_v1 else "2"},
                "billed_units": tokens,
                "tokens": tokens,
            },
        }
    )
