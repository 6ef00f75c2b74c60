"""Routes that return token vectors: Jina's ``/v1/multi-vector`` and vLLM's ``/pooling``."""

from typing import Any, Literal

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute

from model.bundle import EmbeddingKind
from server.errors import InvalidArgumentError
from server.frontends.http.body import NOTHING
from server.frontends.http.embedding_kinds import Encoding, Vectors, check_kind, encoded, required
from server.frontends.http.endpoint import Api, Call, Context, json_response
from server.frontends.http.json_size import MAX_ID_VALUES
from server.frontends.http.openai.errors import error_response
from server.frontends.http.openai.prompts import ENCODER_NAMES, Texts, encoder_texts, truncation
from server.frontends.http.openai.usage import prompt_usage
from server.frontends.http.vllm import list_response
from server.service.embedding import Embedding, EmbedRequest, EmbedResult
from server.service.input_types import InputType

_POOLING_KINDS = (EmbeddingKind.DENSE, EmbeddingKind.MULTI_VECTOR)


class MultiVectorBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Jina's fields. ``base64`` encodes each vector separately; ``truncate`` cuts long texts."""

    model: str
    input: str | list[str]
    input_type: InputType = InputType.DOCUMENT
    embedding_type: Encoding = "float"
    dimensions: int | None = None
    truncate: bool = False
    user: msgspec.Raw = NOTHING


class PoolingBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's fields, and ``input_type``.

    ``task`` depends on the model's kind by default. ``base64`` encodes all vectors of a text as one
    string.
    """

    model: str
    input: Texts
    task: Literal["embed", "token_embed"] | None = None
    encoding_format: Encoding = "float"
    dimensions: int | None = None
    truncate_prompt_tokens: int | None = None
    input_type: InputType | None = None
    user: msgspec.Raw = NOTHING


def routes(context: Context) -> list[BaseRoute]:
    """The routes."""
    api = Api(context=context, error=error_response)
    names = {**ENCODER_NAMES, "token_embeddings": "task"}
    jina = {"inputs": "input", "long_input": "truncate"}
    return [
        api.post("/v1/multi-vector", MultiVectorBody, _multi_vector, names=jina),
        api.post("/pooling", PoolingBody, _pooling, names=names, max_values=MAX_ID_VALUES),
    ]


async def _multi_vector(call: Call[MultiVectorBody]) -> Response:
    """Answers with the token vectors of each text. Only for models with such vectors."""
    body = call.body
    kind = check_kind(call.service.get_model(body.model), EmbeddingKind.MULTI_VECTOR)
    request = EmbedRequest(
        model=body.model,
        inputs=(body.input,) if isinstance(body.input, str) else tuple(body.input),
        input_type=body.input_type,
        dimensions=body.dimensions,
        vectors=(kind,),
        length=truncation(-1 if body.truncate else None),
    )
    result = await call.service.embed(request, call.caller)

    def shown(output: Embedding) -> list[Any]:
        return [encoded(vector, body.embedding_type) for vector in _token_vectors(output)]

    def encode() -> Response:
        data = [
            {"object": "embeddings", "index": index, "embeddings": shown(output)}
            for index, output in enumerate(result.outputs)
        ]
        usage = prompt_usage(result.usage)
        return json_response(
            {"object": "list", "model": result.model, "data": data, "usage": usage}
        )

    return await call.service.build(result.num_values, encode, call.caller)


async def _pooling(call: Call[PoolingBody]) -> Response:
    """Answers with one vector per text, or one per token."""
    body = call.body
    model = call.service.get_model(body.model)
    is_dense = check_kind(model, *_POOLING_KINDS) == EmbeddingKind.DENSE
    if body.task == "embed" and not is_dense:
        raise InvalidArgumentError("task", f"{model.name!r} has a vector for each token")
    wants_tokens = body.task == "token_embed" or not is_dense
    request = EmbedRequest(
        model=body.model,
        inputs=await encoder_texts(body.input, call, body.model),
        input_type=body.input_type,
        dimensions=body.dimensions,
        token_embeddings=wants_tokens and is_dense,
        length=truncation(body.truncate_prompt_tokens),
    )
    result = await call.service.embed(request, call.caller)
    vectors = [
        _token_vectors(output) if wants_tokens else required(output.vector)
        for output in result.outputs
    ]
    return await call.service.build(
        result.num_values, lambda: _pooled(call, result, vectors), call.caller
    )


def _pooled(call: Call[PoolingBody], result: EmbedResult, vectors: list[Vectors]) -> Response:
    encoding = call.body.encoding_format
    data = [
        {"object": "pooling", "index": index, "data": encoded(each, encoding)}
        for index, each in enumerate(vectors)
    ]
    return list_response(call, "pool", data, result.usage)


def _token_vectors(output: Embedding) -> Vectors:
    return required(output.tokens).vectors
