"""Cohere's embedding routes ``/v2/embed`` and ``/v1/embed``."""

import uuid
from typing import Any, Literal, TypeAlias

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute

from model.bundle import EmbeddingKind
from server.bounds import MAX_TEXTS, Size
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
from server.frontends.http.fields import given_names
from server.frontends.http.images import Images, Part
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


class EmbedInput(msgspec.Struct, kw_only=True):
    """One input: a part with a text or an image."""

    content: list[Part]


class EmbedBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts, or images as ``data:`` URLs; ``inputs`` are either. ``priority`` has no effect."""

    model: str
    input_type: InputTypes
    texts: list[str] | None = None
    images: list[str] | None = None
    inputs: list[EmbedInput] | None = None
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
    return [
        api.post("/v2/embed", EmbedBody, _embed, names=_names),
        api.post("/v1/embed", EmbedV1Body, _embed, names=_names),
    ]


def _names(body: EmbedBody) -> dict[str, str]:
    names = {"dimensions": "output_dimension", "long_input": "truncate"}
    return names if body.inputs is not None else {**names, "inputs": "texts"}


def _given(body: EmbedBody) -> tuple[tuple[str, ...], Images]:
    """The texts and the images of a body; one of them is empty.

    Raises:
        InvalidArgumentError: several fields are given, or an input of ``inputs`` has not one part,
            or another type than the first.
    """
    fields = given_names(body, ("texts", "images", "inputs"))
    if len(fields) > 1:
        raise InvalidArgumentError(fields[1], f"cannot be combined with {fields[0]}")
    if body.inputs is None:
        images = Images(images=body.images or [], field="images", path="images[{}]")
        return tuple(body.texts or ()), images
    Size(MAX_TEXTS).check_count("inputs", body.inputs)
    values: dict[str, list[str]] = {"text": [], "image_url": []}
    for index, item in enumerate(body.inputs):
        content = f"inputs[{index}].content"
        if len(item.content) != 1:
            raise InvalidArgumentError(content, "must have one part")
        (part,) = item.content
        if part.type not in values:
            raise InvalidArgumentError(f"{content}[0].type", "is neither text nor image_url")
        address = part.image_url
        value = part.text if part.type == "text" else None if address is None else address.url
        if value is None:
            raise InvalidArgumentError(f"{content}[0].{part.type}", "is required")
        values[part.type].append(value)
        if len(values[part.type]) != index + 1:
            raise InvalidArgumentError(f"inputs[{index}]", "is of another type than the first")
    path = "inputs[{}].content[0].image_url.url"
    return tuple(values["text"]), Images(images=values["image_url"], field="inputs", path=path)


async def _embed(call: Call[EmbedBody]) -> Response:
    body = call.body
    texts, images = _given(body)
    model = call.service.get_model(body.model)
    check_kind(model, EmbeddingKind.DENSE)
    long_input = None if images.images else _LONG_INPUTS[body.truncate or "END"]
    request = EmbedRequest(
        model=body.model,
        inputs=texts,
        images=await images.files(call),
        dimensions=body.output_dimension,
        length=LengthOptions(long_input=long_input, max_tokens=body.max_tokens),
        **({} if images.images else _purpose(body, model)),
    )
    with images.named():
        result = await call.service.embed(request, call.caller)
    vectors = [required(output.vector) for output in result.outputs]
    return await call.service.build(
        result.num_values, lambda: _response(body, texts, vectors, result.usage), call.caller
    )


def _purpose(body: EmbedBody, model: ModelInfo) -> dict[str, Any]:
    """Selects the model's prompt that is named like the input type, else queries or documents."""
    if model.embedding is not None and body.input_type in model.embedding.prompts:
        return {"prompt_name": body.input_type}
    return {"input_type": input_type_of(body.input_type)}


def _response(
    body: EmbedBody, texts: tuple[str, ...], vectors: list[Vectors], usage: Usage
) -> Response:
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
            "texts": texts,
            "meta": {
                "api_version": {"version": "1" if is_v1 else "2"},
                "billed_units": tokens,
                "tokens": tokens,
            },
        }
    )
