"""OpenAI's embedding route ``/v1/embeddings``."""

from typing import cast

import msgspec
from starlette.responses import Response

from model.bundle import EmbeddingKind
from server.errors import InvalidArgumentError
from server.frontends.http.body import NOTHING
from server.frontends.http.embedding_kinds import (
    Encoding,
    InputTypeName,
    JinaTask,
    check_kind,
    encoded,
    input_type_of,
    required,
)
from server.frontends.http.endpoint import Call, json_response
from server.frontends.http.images import ImageItem, ImageMessage, images_of
from server.frontends.http.openai.prompts import ENCODER_NAMES, Texts, encoder_texts, truncation
from server.frontends.http.openai.usage import prompt_usage
from server.service.embedding import EmbedRequest, EmbedResult


class EmbeddingsBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body. The options after ``dimensions`` are those of vLLM, Jina and the service.

    ``input`` is :data:`Texts` or images. ``messages`` is one image and replaces ``input``. ``task``
    is Jina's name for ``input_type``.
    """

    model: str
    input: str | ImageItem | list[str | int | list[int] | ImageItem] | None = None
    messages: list[ImageMessage] | None = None
    encoding_format: Encoding | None = None
    dimensions: int | None = None
    truncate_prompt_tokens: int | None = None
    normalize: bool | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    input_type: InputTypeName | None = None
    task: JinaTask | None = None
    user: msgspec.Raw = NOTHING
    safety_identifier: msgspec.Raw = NOTHING


def embedding_names(body: EmbeddingsBody) -> dict[str, str]:
    """The protocol's names of the service's fields."""
    return ENCODER_NAMES if body.task is None else {**ENCODER_NAMES, "input_type": "task"}


async def embeddings(call: Call[EmbeddingsBody]) -> Response:
    """Embeds texts, token ids or images."""
    body = call.body
    if body.task is not None and body.input_type is not None:
        raise InvalidArgumentError("task", "cannot be combined with input_type")
    images = images_of(body.input, body.messages)
    check_kind(call.service.get_model(body.model), EmbeddingKind.DENSE)
    inputs = images.texts
    if not images.images:
        inputs = await encoder_texts(cast("Texts", body.input), call)
    request = EmbedRequest(
        model=body.model,
        inputs=inputs,
        images=await images.files(call),
        dimensions=body.dimensions,
        normalize=body.normalize,
        prompt=body.prompt,
        prompt_name=body.prompt_name,
        input_type=input_type_of(body.input_type or body.task),
        length=truncation(body.truncate_prompt_tokens),
    )
    with images.named():
        result = await call.service.embed(request, call.caller)
    return await call.service.build(
        result.num_values, lambda: _response(result, body.encoding_format), call.caller
    )


def _response(result: EmbedResult, encoding: Encoding | None) -> Response:
    vectors = [required(output.vector) for output in result.outputs]
    return json_response(
        {
            "object": "list",
            "model": result.model,
            "data": [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": encoded(vector, encoding),
                }
                for index, vector in enumerate(vectors)
            ],
            "usage": prompt_usage(result.usage),
        }
    )
