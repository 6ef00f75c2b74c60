"""Compares two embeddings with the measure of their kind; ``rerank`` gives the same scores."""

import numpy as np
import numpy.typing as npt

from client.encoder_results import Embedding, SparseVector, TokenEmbedding

Floats = npt.NDArray[np.float64]


def similarity(query: Embedding, document: Embedding) -> float:
    """The score of a document for a query; both embeddings must come from the same model.

    - Sparse vectors: the dot product.
    - Multi-vector embeddings: the sum of each query token's highest dot product with a token of the
      document (MaxSim; Khattab and Zaharia 2020, section 3.3). Only this measure depends on which
      of the two is the query.
    - Dense vectors: the cosine; 0 if a vector is 0.

    Raises:
        ValueError: the embeddings are of different kinds or sizes, or have no vector.
    """
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
