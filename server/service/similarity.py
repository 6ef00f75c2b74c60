"""Scores documents for a query by the vectors of an embedding model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from model.bundle import EmbeddingKind
from server.bounds import MAX_SIMILARITY_PRODUCTS, MAX_VECTOR_NUMBERS
from server.engine.requests.update import EncoderOutput
from server.engine.sparse_vectors import SparseWeights
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.service.embedding_kinds import token_vector_size, token_vectors_of, weights_of
from server.service.encoder_options import Floats
from server.service.vectors import normalized
from server.text.late_interaction import LateInteraction
from server.text.windows import TokenizedText, Window

# Multiplications that cost 1: see :mod:`server.service.threads`.
_PRODUCTS_PER_UNIT = 4096
# OpenBLAS computes matrix products with up to this many multiplications in one thread. With more,
# its other threads would wait hundreds of milliseconds for cores that the lanes use.
_PRODUCTS_AT_ONCE = 1 << 18
_QUERIES_AT_ONCE = 32

Score = Callable[[Window, EncoderOutput], float]
"""Maps a document's window and the model's output for it to a score."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query, the model and its output for it.

    ``documents_reader`` is the reader of a multi-vector (late-interaction) model, else ``None``.
    """

    window: Window
    output: EncoderOutput
    model: Model
    documents_reader: LateInteraction | None


def similarity(query: Query, weights: Mapping[EmbeddingKind, float]) -> Score:
    """The similarity to a query: the mean of those by the kinds in ``weights``, so weighted."""
    scores = [(_SCORES[kind](query), weight) for kind, weight in weights.items()]
    if len(scores) == 1:
        return scores[0][0]
    total = sum(weights.values())

    def score(window: Window, output: EncoderOutput) -> float:
        return sum(weight * one(window, output) for one, weight in scores) / total

    return score


def _cosine(query: Query) -> Score:
    unit = normalized(query.output.vector)
    return lambda _, output: float(normalized(output.vector) @ unit)


def _dot_product(query: Query) -> Score:
    """The dot product of sparse vectors."""
    model = query.model
    whole = np.zeros(model.manifest.dimensions.vocabulary_size, np.float32)

    def of(window: Window, output: EncoderOutput) -> SparseWeights:
        return weights_of(window, output, model, len(window.token_ids))

    weights = of(query.window, query.output)
    whole[weights.indices] = weights.values

    def score(window: Window, output: EncoderOutput) -> float:
        weights = of(window, output)
        return float(whole[weights.indices] @ weights.values)

    return score


def _max_sim(query: Query) -> Score:
    """Sums each query vector's highest dot product with a vector of the document (MaxSim).

    Source: Khattab and Zaharia 2020, ColBERT, equation 3. A document without token vectors gets the
    lowest score that a document with vectors of length 1 could have. Of a model with several kinds,
    the mean of the highest products (Chen et al. 2024, M3-Embedding, section 3.2).
    """
    reader = query.documents_reader
    vectors = query.output.vector if reader is not None else token_vectors_of(query.output)
    lowest, divisor = -float(np.linalg.norm(vectors, axis=1).sum()), 1
    if reader is None:
        divisor = max(1, len(vectors))

    def score(window: Window, output: EncoderOutput) -> float:
        if reader is None:
            others = token_vectors_of(output)
        else:
            others = output.vector[reader.kept(window.token_ids)]
        return (_sum_of_highest(vectors, others) if len(others) else lowest) / divisor

    return score


_SCORES: dict[EmbeddingKind, Callable[[Query], Score]] = {
    EmbeddingKind.DENSE: _cosine,
    EmbeddingKind.SPARSE: _dot_product,
    EmbeddingKind.MULTI_VECTOR: _max_sim,
}


def _sum_of_highest(query: Floats, vectors: Floats) -> float:
    """``(vectors @ query.T).max(0).sum()``, in blocks of :data:`_PRODUCTS_AT_ONCE`."""
    total = 0.0
    for first in range(0, len(query), _QUERIES_AT_ONCE):
        some = query[first : first + _QUERIES_AT_ONCE].T
        size = max(1, _PRODUCTS_AT_ONCE // some.size)
        blocks = range(0, len(vectors), size)
        highest = [(vectors[start : start + size] @ some).max(0) for start in blocks]
        total += float(np.max(highest, 0).sum())
    return total


def check_similarity_size(
    query: TokenizedText,
    documents: Sequence[TokenizedText],
    kinds: Sequence[EmbeddingKind],
    model: Model,
) -> None:
    """Checks the cost and the memory of comparing token vectors.

    Raises:
        InvalidArgumentError: the documents' vectors have more than :data:`MAX_VECTOR_NUMBERS`
            numbers, or the comparison needs more than :data:`MAX_SIMILARITY_PRODUCTS` products.
    """
    size = token_vector_size(kinds, model)
    if size is None:
        return
    num_numbers = size * sum(document.num_tokens for document in documents)
    for count, limit, unit in (
        (num_numbers, MAX_VECTOR_NUMBERS, "numbers in vectors of tokens"),
        (num_numbers * query.num_tokens, MAX_SIMILARITY_PRODUCTS, "products of such numbers"),
    ):
        if count > limit:
            raise InvalidArgumentError(
                "documents", f"need {count} {unit}, at most {limit} are accepted"
            )


def similarity_cost(query: EncoderOutput, output: EncoderOutput) -> int:
    """The cost of comparing a query with a window."""
    num_queries = len(query.vector) if query.vector.ndim > 1 else 1
    num_products = num_queries * output.vector.size
    for name, vectors in output.of_tokens.items():
        num_queries = len(query.of_tokens[name]) if vectors.ndim > 1 else 1
        num_products += num_queries * vectors.size
    return 8 + num_products // _PRODUCTS_PER_UNIT
