"""Served embeddings have the retrieval quality of PyTorch's embeddings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.sync import Client
from export.quality.retrieval import DenseVector, SparseVector, TokenVectors
from tests.benchmarks.retrievers import dense_scores, fuse, quality, sparse_scores, token_scores
from tests.defaults.descriptions import (
    STATUS,
    evaluate_pytorch,
    evaluate_server,
    pairs,
    retrieval,
)
from tests.serving import server_process

NUM_PAIRS, FEWEST_PAIRS = 300, 250
TOLERANCE = 0.005


def test_rank_counts_closer_documents() -> None:
    documents = np.eye(3, dtype=np.float32)
    queries = np.array([[1, 0, 0], [0.5, 0.3, 0.1], [0.6, 0.5, 0.4]], np.float32)
    # Ranks of the right documents: 1, 2 and 3.
    result = retrieval(queries, documents)
    assert result.recall_at_1 == pytest.approx(1 / 3)
    assert result.mrr == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)


def test_pairs_short_with_long_descriptions(tmp_path: Path) -> None:
    long = " ".join(f"word{number}" for number in range(12))
    status = tmp_path / "status"
    status.write_text(
        f"Package: a\nDescription: first\n {long}\n .\n and more\nHomepage: x\n\n"
        f"Package: b\nDescription: too short\n few words\n\n"
        f"Package: c\nDescription: twin\n other {long}\n\n"
        f"Package: d\nDescription: other twin\n other {long}\n"
    )
    long_by_short = dict(pairs(9, status))
    assert long_by_short["first"] == f"{long} and more"
    assert len(long_by_short) == 2


@pytest.mark.skipif(not STATUS.exists(), reason="needs Debian's package descriptions")
def test_retrieval_quality_matches_pytorch(fp32_bundles: Path, int8_bundles: Path) -> None:
    descriptions = pairs(NUM_PAIRS)
    if len(descriptions) < FEWEST_PAIRS:
        pytest.skip(f"{len(descriptions)} packages with descriptions are too few")
    reference = evaluate_pytorch(descriptions)
    assert reference.recall_at_1 > 0.3  # chance: 1 in 300
    for bundles in (fp32_bundles, int8_bundles):
        with server_process(bundles) as server, Client(server.target) as client:
            ours = evaluate_server(client, descriptions)
        assert ours.recall_at_1 == pytest.approx(reference.recall_at_1, abs=TOLERANCE)
        assert ours.mrr == pytest.approx(reference.mrr, abs=TOLERANCE)


def _dense(*rows: list[float]) -> list[DenseVector]:
    return [DenseVector(np.array(row, np.float32)) for row in rows]


def test_ways_to_search_score_as_their_vectors_do() -> None:
    rng = np.random.default_rng(0)
    kinds: list[tuple[Callable[[Any, Any], Any], list[Any], list[Any]]] = [
        (dense_scores, _dense([3, 4], [1, 0]), _dense([1, 0], [0, 2], [2, 2])),
        (
            token_scores,
            [TokenVectors(rng.normal(size=(n, 4)).astype(np.float32)) for n in (3, 1)],
            [TokenVectors(rng.normal(size=(n, 4)).astype(np.float32)) for n in (2, 5, 1)],
        ),
        (
            sparse_scores,
            [SparseVector(np.array([2, 7]), np.array([0.5, 2.0], np.float32))],
            [
                SparseVector(np.array([1, 7]), np.array([9.0, 3.0], np.float32)),
                SparseVector(np.array([2, 5, 7]), np.array([4.0, 1.0, 1.0], np.float32)),
            ],
        ),
    ]
    for score, queries, documents in kinds:
        expected = [[query.similarity(document) for document in documents] for query in queries]
        assert score(queries, documents) == pytest.approx(np.array(expected), rel=1e-5)


def test_fused_ranks_and_quality() -> None:
    """The right document of search i is document i; ties rank last."""
    lexical = np.array([[5, 9, 1], [2, 8, 2]], np.float32)
    dense = np.array([[0.9, 0.5, 0.6], [0.3, 0.3, 0.3]], np.float32)
    fused = fuse(lexical, dense)
    assert fused[0] == pytest.approx([1 / 62 + 1 / 61, 1 / 61 + 1 / 63, 1 / 63 + 1 / 62])
    assert quality(lexical).recall_at_1 == 0.5
    assert quality(lexical).mrr_at_10 == pytest.approx((1 / 2 + 1) / 2)
    assert quality(dense).mrr_at_10 == pytest.approx((1 + 1 / 3) / 2)
    assert quality(np.ones((1, 30), np.float32)).recall_at_10 == 0
