"""The Rerank call: sorts documents by relevance to a query."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from model.bundle import Embedding, EmbeddingKind, ScoreFunction, Task
from server.bounds import INPUT_BYTES, MAX_INTEGER, MAX_NAME_BYTES, MAX_TEXTS, bounded, ruled, sized
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.service import validation
from server.service.caller import Caller
from server.service.context import ServiceContext
from server.service.embedding_kinds import kinds_of, token_outputs
from server.service.encoder_call import EncoderCall
from server.service.encoder_options import (
    LengthOptions,
    check_integer,
    length_limit,
    score_function,
)
from server.service.input_types import InputType, reader_of, typed_prompt
from server.service.requests import ModelRequest
from server.service.similarity import Query, check_similarity_size, similarity, similarity_cost
from server.service.threads import MAX_SLICE_COST, Slice, slices_of
from server.service.truncation import Truncation, truncation_of
from server.service.usage import Timing, Usage
from server.text.windows import LongInput, TokenizedText


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankRequest(ModelRequest):
    """A query and the documents to rank.

    ``top_n`` limits the documents to the n best; ``None`` returns all. ``score_function`` applies
    to cross-encoders; ``None`` means the function that the model was trained with.
    ``query_prompt_name`` and ``document_prompt_name`` apply to embedding models; ``None`` means the
    model's prompt for queries or documents, or its default prompt. ``vectors`` are the kinds of an
    embedding model with several to compare; by default the model's first. The score is then the
    mean of theirs with ``weights``, one for each of ``vectors``; by default all are equal.
    """

    query: str = ruled(INPUT_BYTES, "")
    documents: tuple[str, ...] = ruled(INPUT_BYTES, (), max_items=MAX_TEXTS)
    top_n: int | None = bounded(None, 1, MAX_INTEGER)
    return_documents: bool = False
    score_function: ScoreFunction | None = None
    query_prompt_name: str | None = sized(None, max_bytes=MAX_NAME_BYTES)
    document_prompt_name: str | None = sized(None, max_bytes=MAX_NAME_BYTES)
    vectors: tuple[EmbeddingKind, ...] = sized((), max_items=len(EmbeddingKind))
    weights: tuple[float, ...] = sized((), max_items=len(EmbeddingKind))
    length: LengthOptions = field(default_factory=LengthOptions)


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """Document ``index`` of the request; ``document`` is its text if requested, else empty.

    ``score`` is the cross-encoder's score, or the similarity to the query.
    """

    index: int
    score: float
    document: str
    truncation: Truncation


@dataclass(frozen=True, slots=True)
class RerankResult:
    """The result of Rerank, with documents sorted best first."""

    model: str
    outputs: tuple[RankedDocument, ...]
    usage: Usage
    timing: Timing

    @property
    def num_values(self) -> int:
        """Number of numbers and short texts in the reply."""
        return 4 * len(self.outputs)


@dataclass(frozen=True, slots=True)
class _Scores:
    """The tokenized documents and their scores, in the order of the request."""

    tokenized: Sequence[TokenizedText]
    scores: Sequence[float]


async def rerank(request: RerankRequest, context: ServiceContext, caller: Caller) -> RerankResult:
    """Ranks documents by a cross-encoder's scores, or by the similarity of embeddings.

    The similarity is the cosine for dense vectors, the dot product for sparse vectors, and for
    multi-vector models the sum of each query vector's highest dot product (MaxSim), or its mean if
    the model has several kinds of vectors. Scores of several kinds are a weighted mean.

    A document in several windows gets the score of its best window (Dai and Callan 2019).

    Raises:
        ServeError: an input or option is invalid, the model is unknown or does not rank, or its
            queue is full.
    """
    call = EncoderCall.open(request, Task.RERANK, context, caller)
    max_bytes = context.config.max_input_bytes
    validation.check_text(request.query, max_bytes, "query")
    validation.check_texts(request.documents, max_bytes, "documents")
    check_integer("top_n", request.top_n)
    embeds = Task.EMBED in call.model.manifest.tasks
    scored = await (_similarities if embeds else _cross_encoder_scores)(request, call)
    usage, timing = await call.build(len(request.documents), call.finish)

    def ranked() -> tuple[RankedDocument, ...]:
        order = np.argsort(-np.array(scored.scores), kind="stable")[: request.top_n]
        return tuple(
            RankedDocument(
                index=index,
                score=scored.scores[index],
                document=request.documents[index] if request.return_documents else "",
                truncation=truncation_of(scored.tokenized[index]),
            )
            for index in order.tolist()
        )

    outputs = await call.build(8 * len(request.documents), ranked)
    return RerankResult(call.model.manifest.name, outputs, usage, timing)


async def _cross_encoder_scores(request: RerankRequest, call: EncoderCall) -> _Scores:
    """Scores (query, document) pairs with a cross-encoder."""
    for name in ("vectors", "weights"):
        if getattr(request, name):
            raise InvalidArgumentError(name, f"{call.model.manifest.name!r} has no vectors")
    limit = length_limit(request.length, call.model, LongInput.ERROR)
    to_scores = score_function(request.score_function, call.model)
    documents = request.documents
    tokenized = await call.tokenize(
        [request.query] * len(documents), limit, pairs=documents, path="documents[{}]"
    )
    outputs = await call.run(await call.jobs(tokenized))

    def best_windows() -> list[float]:
        return [
            max(float(to_scores(output.vector)[0]) for output in windows) for windows in outputs
        ]

    return _Scores(tokenized, await call.build(8 * len(documents), best_windows))


async def _similarities(request: RerankRequest, call: EncoderCall) -> _Scores:
    """Scores documents by the similarity of their embeddings to the query's."""
    model = call.model
    weights = _weights(request, model)
    readers = [reader_of(model, input_type) for input_type in (InputType.QUERY, InputType.DOCUMENT)]
    query_limit, limit = (
        length_limit(request.length, model, LongInput.ERROR, reader=reader) for reader in readers
    )
    # The query must fit one window, because each window of a document is compared with all of it.
    if query_limit.long_input == LongInput.WINDOWS:
        query_limit = replace(query_limit, long_input=LongInput.ERROR)
    query_prompt, document_prompt = _prompts(request, model.manifest.embedding)
    (query,) = await call.tokenize(
        [query_prompt + request.query], query_limit, reader=readers[0], path="query"
    )
    documents = [document_prompt + document for document in request.documents]
    tokenized = await call.tokenize(documents, limit, reader=readers[1], path="documents[{}]")
    check_similarity_size(query, tokenized, tuple(weights), model)
    jobs = await call.jobs([query, *tokenized], token_outputs=token_outputs(tuple(weights), model))
    (query_output,), *outputs = await call.run(jobs)
    score = similarity(Query(query.windows[0], query_output, model, readers[1]), weights)
    costs = [sum(similarity_cost(query_output, output) for output in each) for each in outputs]

    def best_windows(start: int, stop: int) -> list[float]:
        return [
            max(map(score, text.windows, windows))
            for text, windows in zip(tokenized[start:stop], outputs[start:stop], strict=True)
        ]

    whole = Slice(sum(costs), lambda: best_windows(0, len(outputs)))
    slices = slices_of(costs, best_windows) if whole.cost > MAX_SLICE_COST else [whole]
    parts = await call.context.run_slices(slices, call.caller, is_admitted=True)
    return _Scores(tokenized, [one for part in parts for one in part])


def _weights(request: RerankRequest, model: Model) -> dict[EmbeddingKind, float]:
    """The weight of each kind of vectors to compare."""
    kinds = kinds_of(request.vectors, model)
    if not request.weights:
        return dict.fromkeys(kinds, 1.0)
    if len(request.weights) != len(request.vectors):
        raise InvalidArgumentError(
            "weights", f"{len(request.weights)} given for {len(request.vectors)} in vectors"
        )
    for index, weight in enumerate(request.weights):
        if not 0 <= weight <= MAX_INTEGER:  # NaN is out of bounds
            raise InvalidArgumentError(f"weights[{index}]", f"{weight} is not in 0 … {MAX_INTEGER}")
    if not sum(request.weights):
        raise InvalidArgumentError("weights", "are all 0")
    return dict(zip(kinds, request.weights, strict=True))


def _prompts(request: RerankRequest, embedding: Embedding | None) -> tuple[str, str]:
    """The prompts of the query and of the documents."""
    return (
        typed_prompt(embedding, InputType.QUERY, request.query_prompt_name, "query_prompt_name"),
        typed_prompt(
            embedding, InputType.DOCUMENT, request.document_prompt_name, "document_prompt_name"
        ),
    )
