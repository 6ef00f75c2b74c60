"""Cohere's own client, unmodified, and curl, against a real server."""

import json
import subprocess

import cohere
import pytest
from cohere.errors import BadRequestError, NotFoundError

from tests.frontends.conftest import EMBEDDER, RERANKER
from tests.serving import ServerProcess

DOCUMENTS = ["a cat sat", "two dogs ran", "cats and dogs"]


@pytest.mark.parametrize("model", [RERANKER, EMBEDDER])
def test_reranks(server: ServerProcess, model: str) -> None:
    client = cohere.ClientV2(api_key="none", base_url=server.http_url)
    every = client.rerank(model=model, query="cat", documents=DOCUMENTS)
    best = client.rerank(model=model, query="cat", documents=DOCUMENTS, top_n=1)
    scores = [result.relevance_score for result in every.results]
    assert scores == sorted(scores, reverse=True)
    assert {result.index for result in every.results} == {0, 1, 2}
    assert [result.index for result in best.results] == [every.results[0].index]


@pytest.mark.parametrize("model", [RERANKER, EMBEDDER])
def test_only_documents_are_cut_to_max_tokens_per_doc(server: ServerProcess, model: str) -> None:
    client = cohere.ClientV2(api_key="none", base_url=server.http_url)
    query = "two dogs ran and a cat sat"

    def scores(documents: list[str], max_tokens_per_doc: int | None = None) -> list[float]:
        answer = client.rerank(
            model=model, query=query, documents=documents, max_tokens_per_doc=max_tokens_per_doc
        )
        ranks = sorted(answer.results, key=lambda result: result.index)
        return [rank.relevance_score for rank in ranks]

    whole = scores(DOCUMENTS)
    assert scores(DOCUMENTS, 4096) == pytest.approx(whole)  # Cohere's default
    cut = scores(DOCUMENTS, 2)
    assert cut == pytest.approx(scores([" ".join(each.split()[:2]) for each in DOCUMENTS]))
    assert cut != pytest.approx(whole)


def test_errors(server: ServerProcess) -> None:
    client = cohere.ClientV2(api_key="none", base_url=server.http_url)
    with pytest.raises(NotFoundError):
        client.rerank(model="nothing", query="cat", documents=DOCUMENTS)
    with pytest.raises(BadRequestError) as caught:
        client.rerank(model=RERANKER, query="", documents=DOCUMENTS)
    assert "query" in str(caught.value.body)
    with pytest.raises(NotFoundError, match="/v2/embed"):
        cohere.Client(api_key="none", base_url=server.http_url).embed(texts=["a"], model=EMBEDDER)


def test_curl_reranks_as_jina_and_vllm_do(server: ServerProcess) -> None:
    body = {"model": EMBEDDER, "query": "cat", "documents": DOCUMENTS, "top_n": 2}
    for path in ("/rerank", "/v1/rerank"):
        command = ["curl", "-sS", "--fail-with-body", f"{server.http_url}{path}"]
        command += ["-H", "content-type: application/json", "-d", json.dumps(body)]
        answer = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        assert answer["model"] == EMBEDDER
        assert len(answer["results"]) == 2
        first = answer["results"][0]
        assert first["document"]["text"] == DOCUMENTS[first["index"]]
