"""Several kinds of vectors by the client and the command line, against a real server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from client.aio import AsyncClient
from client.encoder_types import EmbeddingKind
from client.similarity import similarity
from client.sync import Client
from tests.client.test_retrieval import run
from tests.m3_models import KINDS, M3, M3_INT8, TOKEN_SIZE, scores
from tests.serving import server_process

TEXTS = ["a cat sat", "two dogs ran, fast!"]
QUERY = "the cats"


@pytest.fixture(scope="module")
def address(m3_bundles: Path) -> Iterator[str]:
    with server_process(m3_bundles, "--threads", "1") as running:
        yield running.target


@pytest.mark.parametrize("kind", EmbeddingKind)
def test_similarities_are_the_scores_of_rerank(address: str, kind: EmbeddingKind) -> None:
    with Client(address) as client:
        (query,) = client.embed(M3, QUERY, vectors=list(EmbeddingKind)).outputs
        documents = client.embed(M3, TEXTS, vectors=list(EmbeddingKind)).outputs
        ranked = client.rerank(M3, QUERY, TEXTS, vectors=[kind]).outputs
    by_index = {each.index: each.score for each in ranked}
    divisor = len(query.tokens) if kind == EmbeddingKind.MULTI_VECTOR else 1
    found = [similarity(query, document, kind=kind) / divisor for document in documents]
    assert found == pytest.approx([by_index[index] for index in range(2)], abs=1e-4)
    assert found == pytest.approx([scores(QUERY, text)[kind] for text in TEXTS], abs=1e-4)
    if kind == EmbeddingKind.DENSE:
        assert [similarity(query, document) for document in documents] == found


async def test_asyncio_and_streams_return_the_same(address: str) -> None:
    kinds = [EmbeddingKind.SPARSE, EmbeddingKind.MULTI_VECTOR]
    with Client(address) as client:
        expected = client.embed(M3, TEXTS, vectors=kinds).outputs
        (batch,) = client.embed_stream(M3, [TEXTS], vectors=kinds)
        assert batch.outputs == expected
        assert client.embed(M3, TEXTS, vectors="sparse").outputs[0].sparse == expected[0].sparse  # type: ignore[arg-type]
        info = client.get_model(M3).embedding
    assert all(output.sparse and output.tokens and not output.values for output in expected)
    async with AsyncClient(address) as other:
        assert (await other.embed(M3, TEXTS, vectors=kinds)).outputs == expected
    assert info is not None
    assert (info.kind, info.kinds, info.token_vector_size) == ("dense", KINDS, TOKEN_SIZE)


def test_a_missing_kind_is_an_error(address: str) -> None:
    with Client(address) as client:
        one, other = client.embed(M3, TEXTS).outputs
    with pytest.raises(ValueError, match="no sparse vectors"):
        similarity(one, other, kind=EmbeddingKind.SPARSE)


def test_kinds_are_printed_one_after_the_other(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    flags = [argument for kind in KINDS for argument in ("--vectors", kind)]
    printed = run(address, "embed", "--model", M3, *flags, *TEXTS)
    places = [printed.index(measure) for measure in ("cosine", "dot product", "MaxSim of row")]
    assert places == sorted(places)
    assert printed.count(f"]  {TEXTS[0]}") == 3
    whole = json.loads(run(address, "embed", "--model", M3, *flags, "--json", TEXTS[0]))
    (output,) = whole["outputs"]
    assert tuple(output) == KINDS
    assert output["sparse"].keys() == {"indices", "values", "tokens"}
    one = json.loads(run(address, "embed", "--model", M3, "--json", TEXTS[0]))
    assert one["outputs"] == [output["dense"]]
    assert f"embed ({', '.join(KINDS)}), rerank" in run(address, "models")


def test_fidelity_has_each_kind(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    with Client(address) as client:
        parity = client.get_model(M3_INT8).parity
    fidelity = None if parity is None else parity.fidelity
    assert fidelity is not None
    assert fidelity.other_vectors.keys() == {"sparse", "multi_vector"}
    printed = run(address, "models")
    for kind, figures in fidelity.other_vectors.items():
        assert 0.9 < figures.min_cosine < figures.mean_cosine < 1
        assert 0 < figures.retrieval_agreement <= 1
        assert f"{kind} cosine ≥ {figures.min_cosine:.3f}" in printed


def test_ranks_by_weights(address: str) -> None:
    flags = ("--vectors", "dense", "--weight", "1", "--vectors", "sparse", "--weight", "3")
    command = ("rerank", "--model", M3, "--query", QUERY, "--json")
    found = json.loads(run(address, *command, *flags, *TEXTS))["outputs"]
    for output in found:
        by_kind = scores(QUERY, TEXTS[output["index"]])
        expected = (by_kind["dense"] + 3 * by_kind["sparse"]) / 4
        assert output["score"] == pytest.approx(expected, abs=1e-4)
