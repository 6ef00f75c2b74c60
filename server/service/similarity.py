"""Scores documents for a query by the vectors of an embedding model."""

from collections.abc import Callable, Sequence

import numpy as np

from model.bundle import EmbeddingKind
from server.bounds import MAX_SIMILARITY_PRODUCTS, MAX_VECTOR_NUMBERS
from server.engine.requests.update import EncoderOutput
from server.errors import InvalidArgumentError
from server.models.registry import Model
from server.service.encoder_options import Floats
from server.service.vectors import normalized, weights_of
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


def similarity(
    model: Model, query: EncoderOutput, documents_reader: LateInteraction | None
) -> Score:
    """The similarity to a query with output ``query``; the model's kind of vectors selects it.

    ``documents_reader`` is the reader of a multi-vector (late-interaction) model, else ``None``.
    """
    if model.manifest.embedding_kind == EmbeddingKind.SPARSE:
        return _dot_product(query, model.manifest.dimensions.vocabulary_size)
    if documents_reader is not None:
        return _max_sim(query.vector, documents_reader)
    unit = normalized(query.vector)
    return lambda _, output: float(normalized(output.vector) @ unit)


def _dot_product(query: EncoderOutput, vocabulary_size: int) -> Score:
    """The dot product of sparse vectors."""
    whole = np.zeros(vocabulary_size, np.float32)
    weights = weights_of(query)
    whole[weights.indices] = weights.values
    return lambda _, output: float(whole[weights_of(output).indices] @ output.vector)


def _max_sim(query: Floats, reader: LateInteraction) -> Score:
    """Sums each query vector's highest dot product with a vector of the document (MaxSim).

    Source: Khattab and Zaharia 2020, ColBERT, equation 3. A document without token vectors gets the
    lowest score that a document with vectors of length 1 could have.
    """
    lowest = -float(np.linalg.norm(query, axis=1).sum())

    def score(window: Window, output: EncoderOutput) -> float:
        vectors = output.vector[reader.kept(window.token_ids)]
        return _sum_of_highest(query, vectors) if len(vectors) else lowest

    return score


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
    query: TokenizedText, documents: Sequence[TokenizedText], model: Model
) -> None:
    """Checks the cost and the memory of comparing token vectors.

    Raises:
        InvalidArgumentError: the documents' vectors have more than :data:`MAX_VECTOR_NUMBERS`
            numbers, or the comparison needs more than :data:`MAX_SIMILARITY_PRODUCTS` products.
    """
    embedding = model.manifest.embedding
    if embedding is None or embedding.kind != EmbeddingKind.MULTI_VECTOR:
        return
    num_numbers = embedding.size * sum(document.num_tokens for document in documents)
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
    return 8 + num_queries * output.vector.size // _PRODUCTS_PER_UNIT
