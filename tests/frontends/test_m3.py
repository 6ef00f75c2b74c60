"""Models with several kinds of vectors by every HTTP protocol."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import numpy as np
import pytest

from protos.inference import open_inference_pb2_grpc
from tests.frontends.test_retrieval_models import error, post
from tests.m3_models import KINDS, M3, M3_INT8, SIZE, reference, scores
from tests.server.oip.messages import infer_request, outputs_of
from tests.serving import ServerProcess, server_process

TEXTS = ["a cat sat", "two dogs ran, études!"]
QUERY = "cat"


@pytest.fixture(scope="module")
def server(m3_bundles: Path) -> Iterator[ServerProcess]:
    with server_process(m3_bundles, "--threads", "1") as running:
        yield running


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.http_url, timeout=60) as http:
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


WEIGHTED: tuple[tuple[tuple[str, ...], tuple[float, ...]], ...] = (
    ((), ()),
    (("sparse",), ()),
    (("multi_vector",), (3,)),
    (("dense", "sparse"), ()),
    (KINDS, (0.5, 0, 2.25)),
)


def expected_scores(kinds: tuple[str, ...], weights: tuple[float, ...]) -> list[float]:
    used = dict(zip(kinds or ("dense",), weights or (1,) * 3, strict=False))
    by_text = [scores(QUERY, text) for text in TEXTS]
    return [
        sum(weight * each[kind] for kind, weight in used.items()) / sum(used.values())
        for each in by_text
    ]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
@pytest.mark.parametrize(("kinds", "weights"), WEIGHTED)
def test_reranks_by_the_weighted_mean_of_kinds(
    http: httpx2.Client, path: str, kinds: tuple[str, ...], weights: tuple[float, ...]
) -> None:
    body = {"model": M3, "query": QUERY, "documents": TEXTS, "vectors": kinds, "weights": weights}
    ranked = post(http, path, **body)["results"]
    found = {each["index"]: each["relevance_score"] for each in ranked}
    expected = expected_scores(kinds, weights)
    assert [found[index] for index in range(2)] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("kinds", "weights"), WEIGHTED)
def test_teis_route_reranks_by_the_weighted_mean(
    http: httpx2.Client, kinds: tuple[str, ...], weights: tuple[float, ...]
) -> None:
    body = {"query": QUERY, "texts": TEXTS, "vectors": kinds, "weights": weights}
    found = {each["index"]: each["score"] for each in post(http, f"/{M3}/rerank", **body)}
    expected = expected_scores(kinds, weights)
    assert [found[index] for index in range(2)] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("kinds", "weights", "message"),
    [
        (["words"], [], "words"),
        (["sparse", "sparse"], [], "vectors[1]: sparse is given twice"),
        (["sparse"], [1, 2], "weights: 2 given for 1 in vectors"),
        ([], [1], "weights: 1 given for 0 in vectors"),
        (["dense", "sparse"], [1, -1], "weights[1]: -1"),
        (["dense"], [0], "weights: are all 0"),
    ],
)
def test_errors_name_kinds_and_weights(
    http: httpx2.Client, kinds: list[str], weights: list[float], message: str
) -> None:
    body = {"query": QUERY, "vectors": kinds, "weights": weights}
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        status, found = error(http, path, model=M3, documents=TEXTS, **body)
        assert (status, message in found) == (400, True), found
    status, found = error(http, f"/{M3}/rerank", texts=TEXTS, **body)
    assert (status, message in found) == (422 if message == "words" else 413, True), found
    status, found = compared(http, kinds, weights)
    assert (status, message in found) == (400, True), found


def compared(http: httpx2.Client, kinds: Any, weights: Any, model: str = M3) -> tuple[int, Any]:
    """The status, and the scores or the error, by the Open Inference Protocol."""
    inputs = [tensor("query", [QUERY]), tensor("passages", TEXTS)]
    inputs += [tensor("vectors", kinds)] if kinds else []
    inputs += [tensor("weights", weights, "FP32")] if weights else []
    answer = http.post(f"/v2/models/{model}/infer", json={"inputs": inputs})
    found = answer.json()
    return answer.status_code, found.get("error") or found["outputs"][0]["data"]


def tensor(name: str, values: Any, datatype: str = "BYTES") -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(values)], "data": values}


@pytest.mark.parametrize(("kinds", "weights"), WEIGHTED)
def test_inputs_of_the_open_inference_protocol_choose_what_to_compare(
    http: httpx2.Client, kinds: tuple[str, ...], weights: tuple[float, ...]
) -> None:
    found = compared(http, kinds, weights)
    assert found == (200, pytest.approx(expected_scores(kinds, weights), abs=1e-4))


def test_inputs_of_ranking_are_described(http: httpx2.Client) -> None:
    described = http.get(f"/v2/models/{M3}").json()["inputs"]
    assert {"name": "vectors", "datatype": "BYTES", "shape": [-1]} in described
    assert {"name": "weights", "datatype": "FP32", "shape": [-1]} in described
    config = http.get(f"/v2/models/{M3}/config").json()["input"]
    assert {each["name"] for each in config if each["optional"]} >= {"vectors", "weights"}
    status, found = compared(http, [True], [])
    assert status == 400
    assert found.startswith("vectors: data is not a list of BYTES")
    inputs = [tensor("query", [QUERY]), tensor("passages", TEXTS), tensor("weights", ["1"])]
    status, found = error(http, f"/v2/models/{M3}/infer", inputs=inputs)
    assert (status, found) == (400, "weights: datatype 'BYTES' is not FP32")


def test_raw_weights_by_grpc(server: ServerProcess) -> None:
    weights = np.array([0.5, 0, 2.25], np.float32)
    texts = {"query": [QUERY], "passages": TEXTS, "vectors": list(KINDS)}
    inputs: dict[str, Any] = {**texts, "weights": weights}
    with grpc.insecure_channel(server.target) as channel:
        stub: Any = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        found = outputs_of(stub.ModelInfer(infer_request(M3, **inputs), timeout=60))["scores"]
        assert found.tolist() == pytest.approx(expected_scores(KINDS, (0.5, 0, 2.25)), abs=1e-4)
        inputs["weights"] = np.array([1, np.nan, 1], np.float32)
        with pytest.raises(grpc.RpcError, match=r"weights\[1\]: nan is not in 0"):
            stub.ModelInfer(infer_request(M3, **inputs), timeout=60)


def test_models_tell_their_kinds(http: httpx2.Client) -> None:
    found = {each["id"]: each for each in http.get("/v1/models").json()["data"]}
    expected = {"kind": "dense", "size": SIZE, "kinds": list(KINDS)}
    assert found[M3]["embedding"] == expected
    fidelity = found[M3_INT8]["embedding"].pop("fidelity")
    assert found[M3_INT8]["embedding"] == expected
    assert tuple(fidelity) == KINDS
    for figures in fidelity.values():
        assert figures.keys() == {"min_cosine", "mean_cosine", "retrieval_agreement"}
        assert 0.9 < figures["min_cosine"] < figures["mean_cosine"] < 1
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
