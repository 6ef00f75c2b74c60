"""Sparse and multi-vector embeddings by the client and the command line, against a real server."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.aio import AsyncClient
from client.encoder_types import InputType
from client.similarity import similarity
from client.sync import Client
from tests.retrieval_models import MULTI_VECTOR, SPARSE, max_sim
from tests.serving import server_process

ROOT = Path(__file__).parents[2]
TEXTS = ["a cat sat", "two dogs ran, fast!"]
QUERY = "cats"


@pytest.fixture(scope="module")
def address(retrieval_bundles: Path) -> Iterator[str]:
    with server_process(retrieval_bundles, "--threads", "1") as running:
        yield running.target


def run(address: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "client", "--target", address, *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return ran.stdout


@pytest.mark.parametrize("model", [SPARSE, MULTI_VECTOR])
def test_similarities_are_the_scores_of_rerank(address: str, model: str) -> None:
    with Client(address) as client:
        (query,) = client.embed(model, QUERY, input_type=InputType.QUERY).outputs
        documents = client.embed(model, TEXTS, input_type=InputType.DOCUMENT).outputs
        ranked = {each.index: each.score for each in client.rerank(model, QUERY, TEXTS).outputs}
    scores = [similarity(query, document) for document in documents]
    assert scores == pytest.approx([ranked[index] for index in range(2)], abs=1e-4)
    if model == MULTI_VECTOR:
        assert scores == pytest.approx([max_sim(QUERY, text) for text in TEXTS], abs=1e-4)


async def test_asyncio_and_streams_return_the_same(address: str) -> None:
    with Client(address) as blocking:
        for model in (SPARSE, MULTI_VECTOR):
            expected = blocking.embed(model, TEXTS, input_type="query").outputs  # type: ignore[arg-type]
            (batch,) = blocking.embed_stream(model, [TEXTS], input_type=InputType.QUERY)
            assert batch.outputs == expected
            async with AsyncClient(address) as client:
                result = await client.embed(model, TEXTS, input_type=InputType.QUERY)
            assert result.outputs == expected


def test_sparse_vectors_are_printed_as_tokens(address: str) -> None:
    with Client(address) as client:
        outputs = client.embed(SPARSE, TEXTS, max_active_dims=14).outputs
    printed = run(address, "embed", "--model", SPARSE, "--max-active-dims", "14", *TEXTS)
    first, *lines = printed.splitlines()
    assert first.startswith(f"{SPARSE}: 2 sparse vectors, ")
    for line, output, text in zip(lines, outputs, TEXTS, strict=False):
        assert output.sparse is not None
        top = ", ".join(f"{token} {value:.2f}" for token, value in output.sparse.top(12))
        assert line.endswith(f"[{top}, 2 more]  {text}")
    assert f"{similarity(*outputs):.3f}" in printed
    assert "dot product" in printed
    whole = json.loads(run(address, "embed", "--model", SPARSE, "--json", TEXTS[0]))["outputs"]
    with Client(address) as client:
        (expected,) = client.embed(SPARSE, TEXTS[0]).outputs
    assert expected.sparse is not None
    assert whole == [
        {
            "indices": list(expected.sparse.indices),
            "values": list(expected.sparse.values),
            "tokens": list(expected.sparse.tokens),
        }
    ]


def test_vectors_of_tokens_are_printed_with_their_tokens(address: str) -> None:
    arguments = ("embed", "--model", MULTI_VECTOR, "--input-type", "query")
    with Client(address) as client:
        outputs = client.embed(MULTI_VECTOR, TEXTS, input_type=InputType.QUERY).outputs
    printed = run(address, *arguments, *TEXTS)
    assert "2 texts, 24 vectors of 16 dimensions" in printed
    assert f"[{' '.join(token.token for token in outputs[0].tokens)}]  {TEXTS[0]}" in printed
    assert "MaxSim of row" in printed
    assert f"{similarity(outputs[1], outputs[0]):.3f}" in printed
    (tokens,) = json.loads(run(address, *arguments, "--json", TEXTS[0]))["outputs"]
    assert [token["values"] for token in tokens] == [
        list(token.values) for token in outputs[0].tokens
    ]
    assert [token["token"] for token in tokens] == [token.token for token in outputs[0].tokens]


def test_models_show_their_kind(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    printed = run(address, "models")
    assert "embed (sparse), rerank" in printed
    assert "embed (multi_vector), rerank" in printed
