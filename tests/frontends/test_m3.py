"""Models with several kinds of vectors by every HTTP protocol."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from tests.frontends.test_retrieval_models import error, post
from tests.m3_models import KINDS, M3, SIZE, reference, scores
from tests.serving import server_process

TEXTS = ["a cat sat", "two dogs ran, études!"]
QUERY = "cat"


@pytest.fixture(scope="module")
def http(m3_bundles: Path) -> Iterator[httpx2.Client]:
    with (
        server_process(m3_bundles, "--threads", "1") as running,
        httpx2.Client(base_url=running.http_url, timeout=60) as http,
    ):
        yield http


def check_dense(found: Any) -> None:
    np.testing.assert_allclose(found, [reference(text).dense for text in TEXTS], atol=2e-5)


def test_dense_vectors(http: httpx2.Client) -> None:
    check_dense(post(http, f"/{M3}/embed", inputs=TEXTS))
    data = post(http, "/v1/embeddings", model=M3, input=TEXTS)["data"]
    check_dense([each["embedding"] for each in data])
    body = {"model": M3, "texts": TEXTS, "input_type": "search_document"}
    check_dense(post(http, "/v2/embed", **body)["embeddings"]["float"])
    check_dense([each["data"] for each in post(http, "/pooling", model=M3, input=TEXTS)["data"]])


def test_teis_sparse_vectors(http: httpx2.Client) -> None:
    for text, found in zip(TEXTS, post(http, f"/{M3}/embed_sparse", inputs=TEXTS), strict=True):
        weights = reference(text).weights
        assert [each["index"] for each in found] == np.flatnonzero(weights).tolist()
        expected = weights[weights > 0].tolist()
        assert [each["value"] for each in found] == pytest.approx(expected, abs=2e-5)


def test_jinas_vectors_of_tokens(http: httpx2.Client) -> None:
    for input_type in ("query", "document"):
        body = {"model": M3, "input": TEXTS, "input_type": input_type}
        data = post(http, "/v1/multi-vector", **body)["data"]
        for text, found in zip(TEXTS, data, strict=True):
            expected = reference(text).vectors
            np.testing.assert_allclose(found["embeddings"], expected, atol=2e-5)


def test_teis_token_embeddings_are_hidden_vectors(http: httpx2.Client) -> None:
    (found, _) = post(http, f"/{M3}/embed_all", inputs=TEXTS)
    assert np.shape(found) == (len(reference(TEXTS[0]).vectors) + 1, SIZE)
    first = np.array(found[0]) / np.linalg.norm(found[0])
    np.testing.assert_allclose(first, reference(TEXTS[0]).dense, atol=2e-5)


def test_compares_dense_vectors(http: httpx2.Client) -> None:
    expected = [scores(QUERY, text)["dense"] for text in TEXTS]
    inputs = {"source_sentence": QUERY, "sentences": TEXTS}
    found = post(http, f"/{M3}/similarity", inputs=inputs)
    assert found == pytest.approx(expected, abs=1e-4)
    ranked = post(http, "/v1/rerank", model=M3, query=QUERY, documents=TEXTS)["results"]
    by_index = {each["index"]: each["relevance_score"] for each in ranked}
    assert [by_index[index] for index in range(2)] == pytest.approx(expected, abs=1e-4)


def test_models_tell_their_kinds(http: httpx2.Client) -> None:
    found = {each["id"]: each for each in http.get("/v1/models").json()["data"]}
    expected = {"kind": "dense", "size": SIZE, "kinds": list(KINDS)}
    assert found[M3]["embedding"] == expected
    described = http.get(f"/{M3}/info").json()["model_type"]
    assert described == {"embedding": {"pooling": "cls"}}


def infer(http: httpx2.Client, *outputs: str) -> dict[str, Any]:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [2], "data": TEXTS}
    body = {"inputs": [tensor], "outputs": [{"name": name} for name in outputs]}
    found = post(http, f"/v2/models/{M3}/infer", **body)["outputs"]
    return {each["name"]: np.reshape(each["data"], each["shape"]) for each in found}


def test_outputs_of_the_open_inference_protocol_choose_kinds(http: httpx2.Client) -> None:
    described = http.get(f"/v2/models/{M3}").json()["outputs"]
    names = [each["name"] for each in described]
    found = infer(http, "indices", "values", "embedding_output", "token_embeddings", "spans")
    assert set(found) == {*names} - {"tokens", "scores"}
    check_dense(found["embedding_output"])
    for index, text in enumerate(TEXTS):
        expected, rows = reference(text), found["indices"][:, 0] == index
        ids = found["indices"][rows, 1].tolist()
        assert ids == np.flatnonzero(expected.weights).tolist()
        weights = expected.weights[ids]
        np.testing.assert_allclose(found["values"][rows], weights, atol=2e-5)
        vectors = found["token_embeddings"][found["spans"][:, 0] == index]
        np.testing.assert_allclose(vectors, expected.vectors, atol=2e-5)
    alone = infer(http, "tokens")
    assert alone.keys() == {"tokens"}
    assert len(alone["tokens"]) == len(found["spans"])
    assert set(infer(http)) == {"embedding_output"}


def test_kinds_of_the_open_inference_protocol_are_no_parameters(http: httpx2.Client) -> None:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [2], "data": TEXTS}
    body: dict[str, Any] = {"inputs": [tensor]}
    (output,) = post(http, f"/v2/models/{M3}/infer", **body)["outputs"]
    assert output["name"] == "embedding_output"
    check_dense(np.reshape(output["data"], output["shape"]))
    refused = error(http, f"/v2/models/{M3}/infer", **body, parameters={"vectors": "sparse"})
    assert refused[0] == 400
    assert "parameters.vectors" in refused[1]
