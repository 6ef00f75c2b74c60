"""OpenAI's embedding route ``/v1/embeddings``."""

from typing import Any, cast

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
from server.frontends.http.fields import given_names
from server.frontends.http.images import ImageItem, ImageMessage, images_of
from server.frontends.http.openai.options import check_neutral
from server.frontends.http.openai.prompts import ENCODER_NAMES, Texts, encoder_texts, truncation
from server.frontends.http.openai.usage import prompt_usage
from server.service.embedding import EmbedRequest, EmbedResult


class EmbeddingsBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body. The options after ``dimensions`` are those of vLLM, Jina and the service.

    ``input`` is :data:`Texts` or images. ``messages`` is one image and replaces ``input``. Jina's
    names: ``task`` for ``input_type``, ``normalized`` for ``normalize``, ``embedding_type`` for
    ``encoding_format``, which llama-index calls ``encoding_type``. The fields of the last group are
    rejected unless their values have no effect.
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
    embedding_type: Encoding | None = None
    encoding_type: Encoding | None = None
    normalized: bool | None = None
    truncate: bool | None = None
    user: msgspec.Raw = NOTHING
    safety_identifier: msgspec.Raw = NOTHING
    request_id: msgspec.Raw = NOTHING

    late_chunking: msgspec.Raw = NOTHING
    add_special_tokens: msgspec.Raw = NOTHING
    priority: msgspec.Raw = NOTHING
    embed_dtype: msgspec.Raw = NOTHING
    endianness: msgspec.Raw = NOTHING


_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "late_chunking": (False,),
    "add_special_tokens": (True,),
    "priority": (0,),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
}
# Fields for the same, by their name in the service.
_SYNONYMS = {
    "input_type": ("input_type", "task"),
    "encoding": ("encoding_format", "embedding_type", "encoding_type"),
    "normalize": ("normalize", "normalized"),
    "long_input": ("truncate_prompt_tokens", "truncate"),
}


def embedding_names(body: EmbeddingsBody) -> dict[str, str]:
    """The protocol's names of the service's fields."""
    given = {field: given_names(body, names) for field, names in _SYNONYMS.items()}
    return {**ENCODER_NAMES, **{field: names[0] for field, names in given.items() if names}}


def _check_synonyms(body: EmbeddingsBody) -> None:
    for names in _SYNONYMS.values():
        given = given_names(body, names)
        if len(given) > 1:
            raise InvalidArgumentError(given[1], f"cannot be combined with {given[0]}")


async def embeddings(call: Call[EmbeddingsBody]) -> Response:
    """Embeds texts, token ids or images."""
    body = call.body
    _check_synonyms(body)
    check_neutral(body, **_NEUTRAL)
    images = images_of(body.input, body.messages)
    check_kind(call.service.get_model(body.model), EmbeddingKind.DENSE)
    inputs = images.texts
    if not images.images:
        inputs = await encoder_texts(cast("Texts", body.input), call, body.model)
    request = EmbedRequest(
        model=body.model,
        inputs=inputs,
        images=await images.files(call),
        dimensions=body.dimensions,
        normalize=body.normalized if body.normalize is None else body.normalize,
        prompt=body.prompt,
        prompt_name=body.prompt_name,
        input_type=input_type_of(body.input_type or body.task),
        length=truncation(-1 if body.truncate else body.truncate_prompt_tokens),
    )
    with images.named():
        result = await call.service.embed(request, call.caller)
    encoding = body.encoding_format or body.embedding_type or body.encoding_type
    return await call.service.build(
        result.num_values, lambda: _response(result, encoding), call.caller
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
