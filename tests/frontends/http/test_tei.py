"""text-embeddings-inference's API against a real server, with curl and a plain HTTP client."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from client.sync import Client
from tests.frontends.conftest import CLASSIFIER, EMBEDDER, RERANKER
from tests.serving import ServerProcess, server_process

TEXTS = ["a cat sat", "two dogs ran"]
HEADERS = {
    *("x-compute-tokens", "x-total-time", "x-tokenization-time", "x-queue-time"),
    "x-inference-time",
}


def test_results_are_those_of_grpc(server: ServerProcess, http: httpx2.Client) -> None:
    with Client(server.target) as client:
        vectors = [
            list(each.values) for each in client.embed(EMBEDDER, TEXTS, normalize=True).outputs
        ]
        labels = client.classify(CLASSIFIER, TEXTS).outputs[1].labels
        ranks = client.rerank(RERANKER, "cat", TEXTS).outputs
    answer = http.post(f"/{EMBEDDER}/embed", json={"inputs": TEXTS})
    assert answer.json() == vectors
    assert answer.headers.keys() >= HEADERS
    assert int(answer.headers["x-compute-tokens"]) == 10
    body = {"source_sentence": TEXTS[0], "sentences": TEXTS}
    cosines = http.post(f"/{EMBEDDER}/similarity", json={"inputs": body}).json()
    assert cosines == pytest.approx(np.array(vectors) @ vectors[0], abs=1e-5)
    every = http.post(f"/{EMBEDDER}/embed_all", json={"inputs": TEXTS[0]}).json()
    assert np.array(every).shape == (1, 5, len(vectors[0]))
    predicted = http.post(f"/{CLASSIFIER}/predict", json={"inputs": [[text] for text in TEXTS]})
    assert [(each["label"], each["score"]) for each in predicted.json()[1]] == [
        (each.label, pytest.approx(each.score)) for each in labels
    ]
    alone = http.post(f"/{CLASSIFIER}/predict", json={"inputs": TEXTS[1]}).json()
    assert alone == predicted.json()[1]
    ranking = {"query": "cat", "texts": TEXTS, "return_text": True}
    ranked = http.post(f"/{RERANKER}/rerank", json=ranking).json()
    assert [(each["index"], each["text"]) for each in ranked] == [
        (each.index, TEXTS[each.index]) for each in ranks
    ]
    assert [each["score"] for each in ranked] == pytest.approx([each.score for each in ranks])


def test_tokens(http: httpx2.Client) -> None:
    tokenized = http.post(f"/{EMBEDDER}/tokenize", json={"inputs": TEXTS}).json()
    assert [token["text"] for token in tokenized[0]] == ["[CLS]", "a", "cat", "sat", "[SEP]"]
    second = tokenized[0][2]
    assert (second["start"], second["stop"], second["special"]) == (2, 5, False)
    assert (tokenized[0][0]["special"], tokenized[0][0]["start"]) == (True, None)
    body = {"inputs": TEXTS[0], "add_special_tokens": False}
    assert len(http.post(f"/{EMBEDDER}/tokenize", json=body).json()[0]) == 3
    prompted = http.post(
        f"/{EMBEDDER}/tokenize", json={"inputs": TEXTS, "prompt_name": "query"}
    ).json()
    assert [token["text"] for token in prompted[0][:4]] == ["[CLS]", "query", ":", "a"]
    ids = [[token["id"] for token in row] for row in tokenized]
    assert http.post(f"/{EMBEDDER}/decode", json={"ids": ids}).json() == TEXTS
    assert http.post(f"/{EMBEDDER}/decode", json={"ids": ids[0]}).json() == TEXTS[:1]


def test_token_ids_are_embedded_as_their_texts(http: httpx2.Client) -> None:
    body = {"inputs": TEXTS, "add_special_tokens": False}
    rows = http.post(f"/{EMBEDDER}/tokenize", json=body).json()
    ids = [[token["id"] for token in row] for row in rows]
    for path in ("embed", "embed_all"):
        expected = http.post(f"/{EMBEDDER}/{path}", json={"inputs": TEXTS}).json()
        assert http.post(f"/{EMBEDDER}/{path}", json={"inputs": ids}).json() == expected
        assert http.post(f"/{EMBEDDER}/{path}", json={"inputs": ids[1]}).json() == expected[1:]
    wrong = http.post(f"/{EMBEDDER}/embed", json={"inputs": [ids[0], [10**6]]})
    assert (wrong.status_code, wrong.json()["error_type"]) == (413, "Validation")
    assert wrong.json()["error"].startswith("inputs[1].ids[0]: ")
    mixed = http.post(f"/{EMBEDDER}/embed", json={"inputs": ["a", [5]]})
    assert mixed.json()["error"].startswith("inputs[1]: ")


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        (f"{EMBEDDER}/embed", {"inputs": []}, 400, "Empty"),
        (f"{EMBEDDER}/embed", {"inputs": 3}, 422, "Validation"),
        (f"{EMBEDDER}/embed", {}, 422, "Validation"),
        (f"{EMBEDDER}/embed", {"inputs": "a " * 100}, 413, "Validation"),
        (f"{EMBEDDER}/embed", {"inputs": "a", "prompt_name": "x"}, 413, "Validation"),
        (f"{EMBEDDER}/embed", {"inputs": ["a"] * 9000}, 413, "Validation"),
        (f"{EMBEDDER}/tokenize", {"inputs": "a", "prompt_name": "x"}, 413, "Validation"),
        (f"{EMBEDDER}/embed_sparse", {"inputs": "a"}, 424, "Backend"),
        (f"{EMBEDDER}/predict", {"inputs": "a"}, 424, "Backend"),
        (f"{CLASSIFIER}/predict", {"inputs": ["a", "b", "c"]}, 413, "Validation"),
        (f"{CLASSIFIER}/predict", {"inputs": []}, 400, "Empty"),
        (f"{EMBEDDER}/decode", {"ids": [10**6]}, 413, "Validation"),
        ("nothing/embed", {"inputs": "a"}, 404, "Validation"),
    ],
)
def test_errors(http: httpx2.Client, path: str, body: Any, status: int, kind: str) -> None:
    answer = http.post(f"/{path}", json=body)
    assert (answer.status_code, answer.json()["error_type"]) == (status, kind)
    assert answer.json()["error"]


@pytest.mark.parametrize("place", ["source_sentence", "sentences[1]"])
def test_similarity_names_the_empty_text(http: httpx2.Client, place: str) -> None:
    sentences = ["a", "" if place == "sentences[1]" else "b"]
    source = "" if place == "source_sentence" else "a"
    inputs = {"source_sentence": source, "sentences": sentences}
    answer = http.post(f"/{EMBEDDER}/similarity", json={"inputs": inputs})
    assert (answer.status_code, answer.json()["error"]) == (400, f"inputs.{place}: is empty")


def test_parameters_of_similarity_may_be_null(http: httpx2.Client) -> None:
    body: dict[str, Any] = {"inputs": {"source_sentence": "a cat", "sentences": TEXTS}}
    plain = http.post(f"/{EMBEDDER}/similarity", json=body)
    null = http.post(f"/{EMBEDDER}/similarity", json={**body, "parameters": None})
    assert (null.status_code, null.json()) == (200, plain.json())


def test_truncation_and_information(http: httpx2.Client) -> None:
    for direction in ("Left", "Right"):
        body = {"inputs": "a " * 100, "truncate": True, "truncation_direction": direction}
        assert http.post(f"/{EMBEDDER}/embed", json=body).status_code == 200
    info = http.get(f"/{EMBEDDER}/info").json()
    assert (info["model_id"], info["max_input_length"]) == (EMBEDDER, 48)
    assert "embedding" in info["model_type"]
    largest = ["a"] * info["max_client_batch_size"]
    assert len(http.post(f"/{EMBEDDER}/embed", json={"inputs": largest}).json()) == len(largest)
    more = http.post(f"/{EMBEDDER}/embed", json={"inputs": [*largest, "a"]})
    assert more.status_code == 413
    assert http.get(f"/{EMBEDDER}/health").status_code == 200


def test_a_default_model_at_the_root(head_bundles: Path) -> None:
    with server_process(head_bundles, "--tei-model", EMBEDDER) as running:
        command = ["curl", "-sS", f"{running.http_url}/embed", "-d", json.dumps({"inputs": TEXTS})]
        command += ["-H", "content-type: application/json"]
        answer = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        assert np.array(answer).shape == (2, 32)
        assert httpx2.get(f"{running.http_url}/info").json()["model_id"] == EMBEDDER


def test_models_that_normalize_do_so_without_normalize(head_bundles: Path, tmp_path: Path) -> None:
    """Haystack's client sends ``normalize`` false by default."""
    shutil.copytree(head_bundles / EMBEDDER, tmp_path / EMBEDDER)
    manifest = tmp_path / EMBEDDER / "1" / "bundle.json"
    content = json.loads(manifest.read_text())
    content["embedding"]["is_normalized"] = True
    manifest.write_text(json.dumps(content))
    with (
        server_process(tmp_path) as running,
        httpx2.Client(base_url=running.http_url) as client,
    ):
        for path in (f"/{EMBEDDER}/embed", f"/{EMBEDDER}"):
            answers = [
                client.post(path, json={"inputs": TEXTS, "normalize": value})
                for value in (True, False)
            ]
            assert [answer.status_code for answer in answers] == [200, 200]
            assert answers[0].json() == answers[1].json()


def test_rerank_at_the_root_is_that_of_the_body(head_bundles: Path) -> None:
    """Haystack's client sends to ``/rerank`` of the host, whatever the path of its address."""
    tei = {"query": "cat", "texts": TEXTS, "raw_scores": True}
    jina = {"query": "cat", "documents": TEXTS, "model": RERANKER}
    with (
        server_process(head_bundles, "--tei-model", RERANKER) as running,
        httpx2.Client(base_url=running.http_url) as client,
    ):
        expected = client.post(f"/{RERANKER}/rerank", json=tei)
        found = client.post("/rerank", json=tei)
        assert (found.status_code, found.json()) == (200, expected.json())
        assert found.headers.keys() >= HEADERS
        ranks = client.post("/rerank", json=jina).json()["results"]
        assert ranks == client.post("/v1/rerank", json=jina).json()["results"]
        for body, message in (
            ({**tei, "texts": ["a", ""]}, "texts[1]: is empty"),
            ({**jina, "documents": ["a", ""]}, "documents[1]: is empty"),
            ({"query": "cat"}, "model: is required"),
        ):
            assert client.post("/rerank", json=body).json() == {"message": message}


@pytest.mark.parametrize(
    "path", ["embed", "embed_all", "embed_sparse", "predict", "similarity", "decode", "info"]
)
def test_a_route_without_a_model_names_the_one_with_it(http: httpx2.Client, path: str) -> None:
    answer = http.post(f"/{path}", json={"inputs": "a"})
    assert answer.status_code == 404
    hint = f"use /MODEL/{path}, or start the server with --tei-model"
    assert answer.json() == {"error": f"there is nothing at /{path}: {hint}"}
