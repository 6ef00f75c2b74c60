"""Ways to search documents: each returns a score for every query and document.

Scores are ``[queries, documents]``; the document of query i is document i.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.fidelity import figures
from export.quality.model import Model, encode, ids_of
from export.quality.retrieval import DenseVector, SparseVector, TokenVectors
from train.data.bm25 import Bm25

Scores = NDArray[np.float32]
FUSION_CONSTANT = 60  # Cormack et al. 2009


@dataclass(frozen=True, slots=True)
class Quality:
    """Shares of searches, and the mean reciprocal rank, 0 beyond rank 10."""

    recall_at_1: float
    recall_at_10: float
    mrr_at_10: float


def quality(scores: Scores) -> Quality:
    """Measures the searches of ``scores``; an equal score of another document ranks first."""
    own = scores[np.arange(len(scores)), np.arange(len(scores))]
    ranks = (scores >= own[:, None]).sum(1)
    return Quality(
        recall_at_1=float((ranks == 1).mean()),
        recall_at_10=float((ranks <= 10).mean()),
        mrr_at_10=float(np.where(ranks <= 10, 1 / ranks, 0).mean()),
    )


def bm25_scores(queries: Sequence[str], documents: Sequence[str]) -> Scores:
    """Robertson and Zaragoza 2009."""
    index = Bm25(documents)
    return np.stack([index.scores(query) for query in queries]).astype(np.float32)


def dense_scores(queries: Sequence[DenseVector], documents: Sequence[DenseVector]) -> Scores:
    """Cosines."""
    sides = [np.stack([vector.values for vector in side]) for side in (queries, documents)]
    units = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides]
    return np.asarray(units[0] @ units[1].T, np.float32)


def sparse_scores(queries: Sequence[SparseVector], documents: Sequence[SparseVector]) -> Scores:
    """Dot products, by an inverted index."""
    postings: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for number, document in enumerate(documents):
        for token, weight in zip(document.indices.tolist(), document.values.tolist(), strict=True):
            postings[token].append((number, weight))
    scores = np.zeros((len(queries), len(documents)), np.float32)
    for row, query in enumerate(queries):
        for token, weight in zip(query.indices.tolist(), query.values.tolist(), strict=True):
            if token in postings:
                numbers, weights = zip(*postings[token], strict=True)
                scores[row, list(numbers)] += weight * np.array(weights, np.float32)
    return scores


def token_scores(queries: Sequence[TokenVectors], documents: Sequence[TokenVectors]) -> Scores:
    """Late interaction: the sum of each query token's highest dot product."""
    vectors = figures.TokenVectors(
        [query.values for query in queries], [document.values for document in documents]
    )
    return vectors.scores().astype(np.float32)


def fuse(*parts: Scores) -> Scores:
    """Reciprocal rank fusion (Cormack et al. 2009): the sum of ``1 / (60 + rank)``."""
    total = sum(1 / (FUSION_CONSTANT + _ranks(scores)) for scores in parts)
    return np.asarray(total, np.float32)


def _ranks(scores: Scores) -> NDArray[np.int64]:
    """The rank of each document in each search, from 1."""
    order = np.argsort(-scores, axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(1, scores.shape[1] + 1)[None], axis=1)
    return ranks


def cross_encoder_scores(
    model: Model, queries: Sequence[str], documents: Sequence[str], first: Scores, depth: int
) -> Scores:
    """A cross-encoder orders the ``depth`` best documents of each search of ``first``."""
    best = _ranks(first) <= depth
    places = np.argwhere(best)
    rows = [
        ids_of(model.subject.encode_pair(queries[query], documents[number]))
        for query, number in places
    ]
    longest_first = sorted(range(len(rows)), key=lambda index: -len(rows[index][0]))
    outputs = encode(model, [rows[index] for index in longest_first])
    scores = np.full(first.shape, -np.inf, np.float32)
    for index, logits in zip(longest_first, outputs, strict=True):
        scores[tuple(places[index])] = logits[0]
    return scores


def bytes_per_document(vectors: Sequence[Any]) -> float:
    """The mean size of vectors: numbers of 16 bits, token ids of 32 bits."""
    first = vectors[0]
    if isinstance(first, SparseVector):
        return float(np.mean([6 * len(vector.indices) for vector in vectors]))
    return float(np.mean([2 * vector.values.size for vector in vectors]))
