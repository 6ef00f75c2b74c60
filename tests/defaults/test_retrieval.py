"""Embeddings find the same things whoever computes them."""

from pathlib import Path

import numpy as np
import pytest

from client.sync import Client
from tests.benchmarks.retrieval import STATUS, by_pytorch, by_server, pairs, retrieval
from tests.serving import server_process

NUM_PAIRS, FEWEST_PAIRS = 300, 250
TOLERANCE = 0.005


def test_a_rank_counts_what_is_nearer() -> None:
    documents = np.eye(3, dtype=np.float32)
    queries = np.array([[1, 0, 0], [0.5, 0.3, 0.1], [0.6, 0.5, 0.4]], np.float32)
    # The first finds its own; of the others, one is nearer, then two.
    found = retrieval(queries, documents)
    assert found.recall_at_1 == pytest.approx(1 / 3)
    assert found.mrr == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)


def test_a_pair_is_a_short_and_a_long_description(tmp_path: Path) -> None:
    long = " ".join(f"word{number}" for number in range(12))
    status = tmp_path / "status"
    status.write_text(
        f"Package: a\nDescription: first\n {long}\n .\n and more\nHomepage: x\n\n"
        f"Package: b\nDescription: too short\n few words\n\n"
        f"Package: c\nDescription: twin\n other {long}\n\n"
        f"Package: d\nDescription: other twin\n other {long}\n"
    )
    found = dict(pairs(9, status))
    assert found["first"] == f"{long} and more"
    assert len(found) == 2


@pytest.mark.skipif(not STATUS.exists(), reason="the texts are those of Debian's packages")
def test_packages_are_found_as_by_pytorch(fp32_bundles: Path, int8_bundles: Path) -> None:
    found = pairs(NUM_PAIRS)
    if len(found) < FEWEST_PAIRS:
        pytest.skip(f"{len(found)} packages with descriptions are too few")
    reference = by_pytorch(found)
    assert reference.recall_at_1 > 0.3  # by chance: 1 of 300
    for bundles in (fp32_bundles, int8_bundles):
        with server_process(bundles) as server, Client(server.target) as client:
            ours = by_server(client, found)
        assert ours.recall_at_1 == pytest.approx(reference.recall_at_1, abs=TOLERANCE)
        assert ours.mrr == pytest.approx(reference.mrr, abs=TOLERANCE)
