"""text-embeddings-inference's embeddings: ``/embed``, ``/embed_all``, ``/embed_sparse`` and
``/similarity``.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from starlette.responses import Response

from model.bundle import EmbeddingKind
from server.errors import InvalidArgumentError
from server.frontends.http import tei_bodies as bodies
from server.frontends.http.embedding_kinds import check_kind, required
from server.frontends.http.endpoint import Call
from server.frontends.http.openai.prompts import encoder_texts
from server.frontends.http.tei_headers import answer_with
from server.service.embedding import Embedding, EmbedRequest, EmbedResult, SparseVector
from server.service.rerank import RerankRequest


async def embed(model: str, call: Call[bodies.EmbedBody]) -> Response:
    """Answers with one vector per text.

    Without ``normalize``, vectors are as the model makes them: those of some are normalized.
    """
    body = call.body
    described = call.service.get_model(model)
    check_kind(described, EmbeddingKind.DENSE)
    always = described.embedding is not None and described.embedding.is_normalized
    normalize = None if always and not body.normalize else body.normalize
    options = {"dimensions": body.dimensions, "normalize": normalize}
    result = await _embedded(model, call, **options)
    return await _built(call, result, lambda output: required(output.vector).tolist())


async def embed_all(model: str, call: Call[bodies.EmbedAllBody]) -> Response:
    """Answers with one vector per token of each text."""
    kinds = (EmbeddingKind.DENSE, EmbeddingKind.MULTI_VECTOR)
    kind = check_kind(call.service.get_model(model), *kinds)
    result = await _embedded(model, call, token_embeddings=kind == EmbeddingKind.DENSE)
    return await _built(call, result, lambda output: required(output.tokens).vectors.tolist())


async def embed_sparse(model: str, call: Call[bodies.EmbedSparseBody]) -> Response:
    """Answers with the non-zero weights of each text and their token ids."""
    kind = check_kind(call.service.get_model(model), EmbeddingKind.SPARSE)
    options = {"max_active_dims": call.body.max_active_dims, "vectors": (kind,)}
    result = await _embedded(model, call, **options)
    return await _built(call, result, lambda output: _weights(required(output.sparse)))


async def _embedded(model: str, call: Call[Any], **options: Any) -> EmbedResult:
    body: bodies.EmbedAllBody = call.body
    request = EmbedRequest(
        model=model,
        inputs=await encoder_texts(body.inputs, call, model, "inputs"),
        prompt_name=body.prompt_name,
        input_type=body.input_type,
        length=bodies.length_of(body),
        **options,
    )
    return await call.service.embed(request, call.caller)


async def _built(
    call: Call[Any], result: EmbedResult, shown: Callable[[Embedding], Any]
) -> Response:
    """Converts each output with ``shown``, in a thread if there are many numbers."""

    def encode() -> Response:
        return answer_with([shown(output) for output in result.outputs], result)

    return await call.service.build(result.num_values, encode, call.caller)


def _weights(vector: SparseVector) -> list[dict[str, Any]]:
    pairs = zip(vector.indices.tolist(), vector.values.tolist(), strict=True)
    return [{"index": index, "value": value} for index, value in pairs]


async def similarity(model: str, call: Call[bodies.SimilarityBody]) -> Response:
    """Answers with cosines of one text and others; for multi-vector models, with MaxSim scores of
    the others for that text as the query.
    """
    inputs = call.body.inputs
    if not inputs.sentences:
        raise InvalidArgumentError("inputs.sentences", "must not be empty")
    kind = check_kind(call.service.get_model(model), *EmbeddingKind)
    try:
        if kind == EmbeddingKind.MULTI_VECTOR:
            return await _late_interaction(model, call)
        return await _cosines(model, call, kind)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(_similarity_field(error.field), error.description) from None


async def _cosines(model: str, call: Call[bodies.SimilarityBody], kind: EmbeddingKind) -> Response:
    inputs, parameters = call.body.inputs, call.body.parameters or bodies.SimilarityParameters()
    request = EmbedRequest(
        model=model,
        inputs=(inputs.source_sentence, *inputs.sentences),
        prompt_name=parameters.prompt_name,
        normalize=True if kind == EmbeddingKind.DENSE else None,
        length=bodies.length_of(parameters),
    )
    result = await call.service.embed(request, call.caller)
    first, *others = result.outputs

    def encode() -> Response:
        return answer_with([_cosine(first, other) for other in others], result)

    return await call.service.build(result.num_values, encode, call.caller)


def _cosine(embedding: Embedding, other: Embedding) -> float:
    if embedding.sparse is None or other.sparse is None:
        return float(required(embedding.vector) @ required(other.vector))  # both have length 1
    ours, theirs = embedding.sparse, other.sparse
    _, at, there = np.intersect1d(ours.indices, theirs.indices, True, return_indices=True)
    norms = float(np.linalg.norm(ours.values) * np.linalg.norm(theirs.values))
    return float(ours.values[at] @ theirs.values[there]) / norms if norms else 0.0


async def _late_interaction(model: str, call: Call[bodies.SimilarityBody]) -> Response:
    inputs, parameters = call.body.inputs, call.body.parameters or bodies.SimilarityParameters()
    request = RerankRequest(
        model=model,
        query=inputs.source_sentence,
        documents=tuple(inputs.sentences),
        query_prompt_name=parameters.prompt_name,
        document_prompt_name=parameters.prompt_name,
        length=bodies.length_of(parameters),
    )
    result = await call.service.rerank(request, call.caller)
    scores = {output.index: output.score for output in result.outputs}
    return answer_with([scores[index] for index in range(len(scores))], result)


def _similarity_field(field: str) -> str:
    """The body's path of a text: the first one is the source, the others are sentences."""
    text = re.fullmatch(r"(inputs|documents)\[(\d+)\]", field)
    if text is None:
        return {"query": "inputs.source_sentence"}.get(field, field)
    index = int(text[2]) - (text[1] == "inputs")
    return f"inputs.sentences[{index}]" if index >= 0 else "inputs.source_sentence"
