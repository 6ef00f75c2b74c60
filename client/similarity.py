"""Compares two embeddings with the measure of their kind; ``rerank`` gives the same scores."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from client.encoder_options import EmbeddingKind
from client.encoder_results import Embedding, SparseVector, TokenEmbedding

Floats = npt.NDArray[np.float64]


def similarity(
    query: Embedding, document: Embedding, *, kind: EmbeddingKind | None = None
) -> float:
    """The score of a document for a query; both embeddings must come from the same model.

    ``kind`` selects the vectors of embeddings with several kinds; by default the dense ones, else
    the sparse ones.

    - Sparse vectors: the dot product.
    - Multi-vector embeddings: the sum of each query token's highest dot product with a token of the
      document (MaxSim; Khattab and Zaharia 2020, section 3.3). Only this measure depends on which
      of the two is the query. If the model has several kinds, ``rerank`` returns the mean instead
      (Chen et al. 2024, M3-Embedding, section 3.2).
    - Dense vectors: the cosine; 0 if a vector is 0.

    Raises:
        ValueError: the embeddings are of different kinds or sizes, or have no vector.
    """
    if kind is not None:
        if not all(kind in kinds_of(each) for each in (query, document)):
            raise ValueError(f"an embedding has no {kind} vectors")
        query, document = only(query, kind), only(document, kind)
    if query.values and document.values:
        query, document = (only(each, EmbeddingKind.DENSE) for each in (query, document))
    if query.sparse is not None and document.sparse is not None:
        return _dot(query.sparse, document.sparse)
    if query.sparse is not None or document.sparse is not None:
        raise ValueError("one of the embeddings is sparse, the other is not")
    if not query.values and not document.values:
        return float(token_similarities(query, document).max(axis=1).sum())
    if len(query.values) != len(document.values):
        raise ValueError(f"the vectors have {len(query.values)} and {len(document.values)} numbers")
    vector, other = np.array(query.values), np.array(document.values)
    norms = float(np.linalg.norm(vector) * np.linalg.norm(other))
    return float(vector @ other) / norms if norms else 0.0


def kinds_of(embedding: Embedding) -> tuple[EmbeddingKind, ...]:
    """The kinds of vectors that an embedding has."""
    found = {
        EmbeddingKind.DENSE: bool(embedding.values),
        EmbeddingKind.SPARSE: embedding.sparse is not None,
        EmbeddingKind.MULTI_VECTOR: bool(embedding.tokens),
    }
    return tuple(kind for kind, has_it in found.items() if has_it)


def only(embedding: Embedding, kind: EmbeddingKind) -> Embedding:
    """The embedding with its vectors of this kind alone."""
    return replace(
        embedding,
        values=embedding.values if kind == EmbeddingKind.DENSE else (),
        sparse=embedding.sparse if kind == EmbeddingKind.SPARSE else None,
        tokens=embedding.tokens if kind == EmbeddingKind.MULTI_VECTOR else (),
    )


def token_similarities(query: Embedding, document: Embedding) -> Floats:
    """The dot products of all tokens: ``[query tokens, document tokens]``.

    Raises:
        ValueError: an embedding has no vectors of tokens, or their sizes differ.
    """
    vectors, others = _vectors(query.tokens), _vectors(document.tokens)
    if vectors.shape[1] != others.shape[1]:
        raise ValueError(f"the vectors have {vectors.shape[1]} and {others.shape[1]} numbers")
    products: Floats = vectors @ others.T
    return products


def _vectors(tokens: tuple[TokenEmbedding, ...]) -> Floats:
    if not tokens:
        raise ValueError("an embedding has no vectors of tokens")
    return np.array([token.values for token in tokens])


def _dot(vector: SparseVector, other: SparseVector) -> float:
    weights = dict(zip(other.indices, other.values, strict=True))
    return sum(
        value * weights.get(index, 0.0)
        for index, value in zip(vector.indices, vector.values, strict=True)
    )
