"""Cohere's own client, unmodified, and curl, against a real server."""

import json
import subprocess
from typing import Any

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


def test_version_1_embeds_as_version_2(server: ServerProcess) -> None:
    """LangChain sends types, and null for ``truncate``; without types, the answer is a list."""
    client = cohere.Client(api_key="none", base_url=server.http_url)
    both = cohere.ClientV2(api_key="none", base_url=server.http_url)
    fields: dict[str, Any] = {"model": EMBEDDER, "texts": DOCUMENTS, "input_type": "search_query"}
    expected = both.embed(**fields, embedding_types=["float"]).embeddings.float_
    typed = client.embed(**fields, embedding_types=["float"], truncate=None)
    assert typed.response_type == "embeddings_by_type"
    assert typed.embeddings.float_ == expected
    listed = client.embed(texts=DOCUMENTS, model=EMBEDDER)
    assert listed.response_type == "embeddings_floats"
    assert len(listed.embeddings) == len(DOCUMENTS)
    assert listed.texts == DOCUMENTS
    assert client.embed(texts=DOCUMENTS[:1], model=EMBEDDER).embeddings == listed.embeddings[:1]


def test_inputs_are_texts_with_a_type(server: ServerProcess) -> None:
    client = cohere.ClientV2(api_key="none", base_url=server.http_url)
    fields: dict[str, Any] = {
        "model": EMBEDDER,
        "input_type": "search_query",
        "embedding_types": ["float"],
    }
    inputs: Any = [{"content": [{"type": "text", "text": text}]} for text in DOCUMENTS]
    expected = client.embed(texts=DOCUMENTS, **fields)
    found = client.embed(inputs=inputs, **fields)
    assert found.embeddings.float_ == expected.embeddings.float_
    assert found.texts == DOCUMENTS
    image = {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]}
    empty = {"content": [{"type": "text", "text": ""}]}
    refused: Any = (
        ([inputs[0], image], "inputs[1]: is of another type than the first"),
        ([inputs[0], empty], "inputs[1]: is empty"),
        ([{"content": []}], "inputs[0].content: must have one part"),
        ([{"content": [{"type": "audio"}]}], "inputs[0].content[0].type: is neither text nor"),
        ([{"content": [{"type": "text"}]}], "inputs[0].content[0].text: is required"),
        (inputs * 2000, "inputs: 6000 given, at most 4096"),
    )
    for wrong, message in refused:
        with pytest.raises(BadRequestError) as caught:
            client.embed(inputs=wrong, **fields)
        assert caught.value.body["message"].startswith(message)
    with pytest.raises(BadRequestError, match="inputs: cannot be combined with texts"):
        client.embed(inputs=inputs, texts=DOCUMENTS, **fields)


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
