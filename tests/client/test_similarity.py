"""How similar embeddings are, against formulas in numpy."""

import numpy as np
import pytest

from client.encoder_types import Embedding, Reading, SparseVector, TokenEmbedding
from client.similarity import similarity, token_similarities
from client.types import Usage

USAGE = Usage(input_tokens=1, output_tokens=0, reused_tokens=0)
READING = Reading(truncated_tokens=0, windows=1)


def dense(*values: float) -> Embedding:
    return Embedding(values=values, usage=USAGE, reading=READING)


def sparse(weights: dict[int, float]) -> Embedding:
    vector = SparseVector(
        indices=tuple(weights), values=tuple(weights.values()), tokens=tuple(map(str, weights))
    )
    return Embedding(values=(), usage=USAGE, reading=READING, sparse=vector)


def multi_vector(vectors: np.ndarray) -> Embedding:
    tokens = tuple(
        TokenEmbedding(token=f"t{index}", start=0, end=0, values=tuple(row))
        for index, row in enumerate(vectors.tolist())
    )
    return Embedding(values=(), usage=USAGE, reading=READING, tokens=tokens)


def test_cosine_of_vectors() -> None:
    assert similarity(dense(3, 4), dense(8, 6)) == pytest.approx(48 / 50)
    assert similarity(dense(3, 4), dense(-4, 3)) == pytest.approx(0)
    assert similarity(dense(0, 0), dense(1, 2)) == 0


def test_dot_product_of_sparse_vectors() -> None:
    one, other = {2: 0.5, 7: 2.0, 9: 1.0}, {1: 3.0, 7: 1.5, 9: 0.25}
    whole = np.zeros((2, 10))
    for row, weights in zip(whole, (one, other), strict=True):
        row[list(weights)] = list(weights.values())
    assert similarity(sparse(one), sparse(other)) == pytest.approx(whole[0] @ whole[1])
    assert similarity(sparse(one), sparse({})) == 0


def test_late_interaction_sums_each_query_tokens_best() -> None:
    random = np.random.default_rng(3)
    query, document = random.normal(size=(3, 4)), random.normal(size=(5, 4))
    ours, theirs = multi_vector(query), multi_vector(document)
    best = sum(max(float(one @ other) for other in document) for one in query)
    assert similarity(ours, theirs) == pytest.approx(best)
    assert similarity(theirs, ours) != pytest.approx(best)
    np.testing.assert_allclose(token_similarities(ours, theirs), query @ document.T)


@pytest.mark.parametrize(
    ("query", "document", "message"),
    [
        (sparse({1: 1.0}), dense(1), "sparse"),
        (dense(1, 2), dense(1, 2, 3), "2 and 3"),
        (dense(1), multi_vector(np.ones((2, 4))), "1 and 0"),
        (dense(), multi_vector(np.ones((2, 4))), "no vectors"),
        (multi_vector(np.ones((2, 3))), multi_vector(np.ones((2, 4))), "3 and 4"),
    ],
)
def test_different_kinds_are_errors(query: Embedding, document: Embedding, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        similarity(query, document)


def test_top_tokens_of_a_sparse_vector() -> None:
    embedding = sparse({2: 0.5, 7: 2.0, 9: 1.0})
    assert embedding.sparse is not None
    assert embedding.sparse.top(2) == (("7", 2.0), ("9", 1.0))
    assert len(embedding.sparse.top(9)) == 3
