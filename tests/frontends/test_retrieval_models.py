"""Sparse and multi-vector models, and what texts are for, by every HTTP protocol."""

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cohere
import httpx2
import numpy as np
import pytest

from client.encoder_types import Embedding, InputType
from client.sync import Client
from client.types import EmbeddingInfo
from tests.frontends.conftest import CLASSIFIER, EMBEDDER
from tests.pictures import encoded, picture
from tests.retrieval_models import (
    DOCUMENT_LENGTH,
    MULTI_VECTOR,
    NAMES,
    QUERY_LENGTH,
    SIZE,
    SPARSE,
    UNFILLED,
    document_vectors,
    max_sim,
    query_ids,
    sparse_reference,
    vectors_reference,
)
from tests.serving import ServerProcess, server_process

TEXTS = ["a cat sat", "two dogs ran, études!"]
QUERY = "cat"


@pytest.fixture(scope="module")
def server(
    retrieval_bundles: Path,
    head_bundles: Path,
    image_bundles: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("retrieval")
    for root, names in (
        (retrieval_bundles, NAMES),
        (head_bundles, (EMBEDDER, CLASSIFIER)),
        (image_bundles, ("vit-embed",)),
    ):
        for name in names:
            shutil.copytree(root / name, folder / name)
    with server_process(folder, "--threads", "1") as running:
        yield running


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.http_url, timeout=60) as http:
        yield http


@pytest.fixture(scope="module")
def ours(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target, timeout_seconds=60) as client:
        yield client


def post(http: httpx2.Client, path: str, **body: Any) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def error(http: httpx2.Client, path: str, **body: Any) -> tuple[int, str]:
    """The status of a rejected call, and its message."""
    answer = http.post(path, json=body)
    found = answer.json()
    message = found.get("message") or found["error"]
    return answer.status_code, message["message"] if isinstance(message, dict) else message


def vectors(output: Embedding) -> list[list[float]]:
    return [list(token.values) for token in output.tokens]


def test_teis_sparse_embeddings(http: httpx2.Client, ours: Client) -> None:
    expected = ours.embed(SPARSE, TEXTS).outputs
    answer = post(http, f"/{SPARSE}/embed_sparse", inputs=TEXTS)
    for output, weights in zip(expected, answer, strict=True):
        assert output.sparse is not None
        assert [each["index"] for each in weights] == list(output.sparse.indices)
        assert [each["value"] for each in weights] == list(output.sparse.values)
    (one,) = post(http, f"/{SPARSE}/embed_sparse", inputs=TEXTS[0], max_active_dims=5)
    weights = sparse_reference(TEXTS[0])
    assert [each["index"] for each in one] == sorted(np.argsort(-weights)[:5].tolist())
    assert [each["value"] for each in one] == pytest.approx(
        [weights[each["index"]] for each in one], abs=2e-5
    )
    (query,) = post(http, f"/{SPARSE}/embed_sparse", inputs=QUERY, input_type="query")
    (prompted,) = post(http, f"/{SPARSE}/embed_sparse", inputs=QUERY, prompt_name="query")
    assert query == prompted != post(http, f"/{SPARSE}/embed_sparse", inputs=QUERY)[0]


def test_teis_vectors_of_tokens(http: httpx2.Client) -> None:
    (document,) = post(http, f"/{MULTI_VECTOR}/embed_all", inputs=TEXTS[1])
    np.testing.assert_allclose(document, document_vectors(TEXTS[1]), atol=1e-5)
    (query,) = post(http, f"/{MULTI_VECTOR}/embed_all", inputs=QUERY, input_type="query")
    assert len(query) == QUERY_LENGTH
    np.testing.assert_allclose(query, vectors_reference(*query_ids(QUERY)), atol=1e-5)


def test_teis_similarity(http: httpx2.Client) -> None:
    inputs = {"source_sentence": QUERY, "sentences": TEXTS}
    scores = post(http, f"/{MULTI_VECTOR}/similarity", inputs=inputs)
    assert scores == pytest.approx([max_sim(QUERY, text) for text in TEXTS], abs=1e-4)
    one, *others = (_largest(sparse_reference(text), 1024) for text in (QUERY, *TEXTS))
    cosines = [one @ each / np.linalg.norm(one) / np.linalg.norm(each) for each in others]
    assert post(http, f"/{SPARSE}/similarity", inputs=inputs) == pytest.approx(cosines, abs=1e-4)
    inputs = {"source_sentence": QUERY, "sentences": [TEXTS[0], ""]}
    for model in (MULTI_VECTOR, SPARSE):
        status, message = error(http, f"/{model}/similarity", inputs=inputs)
        assert (status, message) == (400, "inputs.sentences[1]: is empty")
    inputs = {"source_sentence": "", "sentences": TEXTS}
    status, message = error(http, f"/{MULTI_VECTOR}/similarity", inputs=inputs)
    assert (status, message) == (400, "inputs.source_sentence: is empty")


def _largest(weights: Any, count: int) -> Any:
    return np.where(weights >= np.sort(weights)[-count], weights, 0)


@pytest.mark.parametrize(
    ("model", "described"),
    [
        (SPARSE, {"embedding": {"pooling": "splade"}}),
        (MULTI_VECTOR, {"embedding": {"pooling": "multi_vector"}}),
        (EMBEDDER, {"embedding": {"pooling": "mean"}}),
    ],
)
def test_teis_model_type(http: httpx2.Client, model: str, described: Any) -> None:
    assert http.get(f"/{model}/info").json()["model_type"] == described


@pytest.mark.parametrize(
    ("model", "path", "use"),
    [
        (SPARSE, "embed", f"/{SPARSE}/embed_sparse"),
        (SPARSE, "embed_all", f"/{SPARSE}/embed_sparse"),
        (MULTI_VECTOR, "embed", f"/{MULTI_VECTOR}/embed_all"),
        (MULTI_VECTOR, "embed_sparse", f"/{MULTI_VECTOR}/embed_all"),
        (EMBEDDER, "embed_sparse", f"/{EMBEDDER}/embed"),
    ],
)
def test_teis_other_kinds_of_embeddings_are_errors(
    http: httpx2.Client, model: str, path: str, use: str
) -> None:
    answer = http.post(f"/{model}/{path}", json={"inputs": TEXTS})
    assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")
    assert use in answer.json()["error"]


@pytest.mark.parametrize("model", [SPARSE, MULTI_VECTOR, UNFILLED])
def test_ranks_are_those_of_grpc(http: httpx2.Client, ours: Client, model: str) -> None:
    outputs = ours.rerank(model, QUERY, TEXTS).outputs
    expected = [(output.index, pytest.approx(output.score)) for output in outputs]
    for path in ("/v2/rerank", "/v1/rerank", "/rerank"):
        found = post(http, path, model=model, query=QUERY, documents=TEXTS)["results"]
        assert [(each["index"], each["relevance_score"]) for each in found] == expected
    found = post(http, f"/{model}/rerank", query=QUERY, texts=TEXTS)
    assert [(each["index"], each["score"]) for each in found] == expected
    scores = post(http, "/score", model=model, text_1=QUERY, text_2=TEXTS)["data"]
    assert {each["index"]: each["score"] for each in scores} == dict(expected)


def test_jinas_vectors_of_tokens(http: httpx2.Client, ours: Client) -> None:
    for input_type in InputType:
        expected = ours.embed(MULTI_VECTOR, TEXTS, input_type=input_type)
        body = {"model": MULTI_VECTOR, "input": TEXTS, "input_type": input_type}
        answer = post(http, "/v1/multi-vector", **body)
        assert answer["usage"]["total_tokens"] == expected.usage.input_tokens
        assert [each["index"] for each in answer["data"]] == [0, 1]
        found = [each["embeddings"] for each in answer["data"]]
        assert found == [vectors(output) for output in expected.outputs]
        packed = post(http, "/v1/multi-vector", **body, embedding_type="base64")["data"]
        rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in packed[1]["embeddings"]]
        assert np.stack(rows).tolist() == found[1]
    long = {"model": MULTI_VECTOR, "input": "cat " * 100, "input_type": "query"}
    cut = post(http, "/v1/multi-vector", **long, truncate=True)["data"][0]["embeddings"]
    np.testing.assert_allclose(cut, vectors_reference(*query_ids("cat " * 100)), atol=1e-5)
    assert error(http, "/v1/multi-vector", **long)[0] == 400
    default = post(http, "/v1/multi-vector", model=MULTI_VECTOR, input=TEXTS[0])["data"]
    assert default[0]["embeddings"] == found[0]


def test_vllms_pooling(http: httpx2.Client, ours: Client) -> None:
    body = {"model": EMBEDDER, "input": TEXTS}
    expected = ours.embed(EMBEDDER, TEXTS, token_embeddings=True).outputs
    pooled = post(http, "/pooling", **body)
    assert [each["data"] for each in pooled["data"]] == [list(each.values) for each in expected]
    assert post(http, "/pooling", **body, task="embed")["data"] == pooled["data"]
    tokens = post(http, "/pooling", **body, task="token_embed")["data"]
    assert [each["data"] for each in tokens] == [vectors(output) for output in expected]
    assert {each["object"] for each in (*tokens, *pooled["data"])} == {"pooling"}
    query = ours.embed(MULTI_VECTOR, QUERY, input_type=InputType.QUERY).outputs[0]
    body = {"model": MULTI_VECTOR, "input": QUERY, "input_type": "query"}
    (found,) = post(http, "/pooling", **body)["data"]
    assert found["data"] == vectors(query)
    (packed,) = post(http, "/pooling", **body, encoding_format="base64")["data"]
    flat = np.frombuffer(base64.b64decode(packed["data"]), "<f4")
    assert flat.reshape(-1, SIZE).tolist() == found["data"]


@pytest.mark.parametrize(
    ("field", "name", "input_type"),
    [
        ("input_type", "query", "query"),
        ("input_type", "search_query", "query"),
        ("input_type", "passage", "document"),
        ("input_type", "clustering", None),
        ("task", "retrieval.query", "query"),
        ("task", "retrieval.passage", "document"),
        ("task", "text-matching", None),
    ],
)
def test_input_types_of_openais_protocol(
    http: httpx2.Client, ours: Client, field: str, name: str, input_type: str | None
) -> None:
    expected = ours.embed(EMBEDDER, TEXTS, input_type=input_type).outputs  # type: ignore[arg-type]
    data = post(http, "/v1/embeddings", **{"model": EMBEDDER, "input": TEXTS, field: name})["data"]
    assert [each["embedding"] for each in data] == [list(output.values) for output in expected]
    other = ours.embed(EMBEDDER, TEXTS[0]).outputs[0].values
    assert (data[0]["embedding"] != list(other)) == (input_type == "query")


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/embeddings", {"model": SPARSE, "input": "a"}, f"/{SPARSE}/embed_sparse"),
        ("/v1/embeddings", {"model": MULTI_VECTOR, "input": "a"}, "use /v1/multi-vector"),
        ("/v1/embeddings", {"input": "a", "input_type": "x"}, "input_type"),
        ("/v1/embeddings", {"input": "a", "task": "x"}, "task"),
        (
            "/v1/embeddings",
            {"input": "a", "task": "retrieval.query", "input_type": "query"},
            "task: cannot be combined with input_type",
        ),
        (
            "/v1/embeddings",
            {"input": "a", "task": "retrieval.query", "prompt": "b"},
            "task: cannot be combined with prompt",
        ),
        ("/v1/multi-vector", {"input": "a"}, "model: 'embedder' has one vector"),
        ("/v1/multi-vector", {"model": MULTI_VECTOR, "input": []}, "input: must not be empty"),
        ("/v1/multi-vector", {"model": MULTI_VECTOR, "input": ["a", ""]}, "input[1]: is empty"),
        ("/v1/multi-vector", {"model": MULTI_VECTOR, "input": "a", "late": True}, "late"),
        ("/v1/multi-vector", {"model": CLASSIFIER, "input": "a"}, "model"),
        ("/pooling", {"model": SPARSE, "input": "a"}, f"/{SPARSE}/embed_sparse"),
        ("/pooling", {"model": MULTI_VECTOR, "input": "a", "task": "embed"}, "task"),
        ("/pooling", {"input": "a", "task": "classify"}, "task"),
        ("/pooling", {"input": ["a", ""]}, "input[1]: is empty"),
        ("/v2/embed", {"texts": ["a"]}, "input_type"),
        ("/v2/embed", {"input_type": "query", "texts": ["a"]}, "input_type"),
        ("/v2/embed", {"input_type": "clustering", "texts": []}, "texts: must not be empty"),
        (
            "/v2/embed",
            {"input_type": "clustering", "texts": ["a"], "embedding_types": ["int8"]},
            "embedding_types",
        ),
        (
            "/v2/embed",
            {"input_type": "clustering", "texts": ["a"], "output_dimension": 999},
            "output_dimension",
        ),
        (
            "/v2/embed",
            {"model": SPARSE, "input_type": "clustering", "texts": ["a"]},
            f"/{SPARSE}/embed_sparse",
        ),
        (
            "/v2/embed",
            {"input_type": "image", "texts": ["a"], "images": ["b"]},
            "images: cannot be combined with texts",
        ),
    ],
)
def test_errors_name_the_field(http: httpx2.Client, path: str, body: Any, message: str) -> None:
    status, found = error(http, path, **({"model": EMBEDDER} | body))
    assert (status, message in found) == (400, True), found


def test_coheres_client_embeds(server: ServerProcess, ours: Client) -> None:
    client = cohere.ClientV2(api_key="none", base_url=server.http_url)
    for name, input_type in (
        ("search_query", "query"),
        ("search_document", "document"),
        ("classification", None),
    ):
        expected = ours.embed(EMBEDDER, TEXTS, input_type=input_type)  # type: ignore[arg-type]
        answer = client.embed(
            model=EMBEDDER, texts=TEXTS, input_type=name, embedding_types=["float", "base64"]
        )
        values = [list(output.values) for output in expected.outputs]
        assert answer.embeddings.float_ == values
        assert answer.embeddings.base64 is not None
        packed = base64.b64decode(answer.embeddings.base64[0])
        assert np.frombuffer(packed, "<f4").tolist() == values[0]
        assert answer.texts == TEXTS
        assert answer.meta is not None
        assert answer.meta.tokens is not None
        assert answer.meta.tokens.input_tokens == expected.usage.input_tokens
    short = client.embed(
        model=EMBEDDER, texts=TEXTS, input_type="clustering", output_dimension=8, max_tokens=4
    )
    expected = ours.embed(EMBEDDER, TEXTS, dimensions=8, max_tokens=4, long_input="truncate_right")  # type: ignore[arg-type]
    assert short.embeddings.float_ == [list(output.values) for output in expected.outputs]


def test_repeated_embedding_types_cost_nothing(http: httpx2.Client) -> None:
    body = {"model": EMBEDDER, "input_type": "clustering", "texts": TEXTS * 64}
    many = post(http, "/v2/embed", **body, embedding_types=["float"] * 100_000)
    assert many["embeddings"] == post(http, "/v2/embed", **body)["embeddings"]


def test_coheres_client_embeds_images(server: ServerProcess, ours: Client) -> None:
    client = cohere.ClientV2(api_key="none", base_url=server.http_url)
    address = f"data:image/png;base64,{encoded(picture())}"
    answer = client.embed(model="vit-embed", images=[address], input_type="image")
    (expected,) = ours.embed("vit-embed", [picture()]).outputs
    assert answer.embeddings.float_ == [list(expected.values)]


def test_cohere_truncates_unless_told_otherwise(http: httpx2.Client) -> None:
    body = {"model": EMBEDDER, "input_type": "clustering", "texts": ["a " * 100]}
    ends = [post(http, "/v2/embed", **body, truncate=end) for end in ("END", "START")]
    assert post(http, "/v2/embed", **body)["embeddings"] == ends[0]["embeddings"]
    assert error(http, "/v2/embed", **body, truncate="NONE")[0] == 400


def test_models_tell_their_kind(http: httpx2.Client, ours: Client) -> None:
    found = {each["id"]: each for each in http.get("/v1/models").json()["data"]}
    assert found[SPARSE]["embedding"]["kind"] == "sparse"
    assert found[MULTI_VECTOR]["embedding"] == {"kind": "multi_vector", "size": SIZE}
    assert "embedding" not in found[CLASSIFIER]
    info = ours.get_model(MULTI_VECTOR).embedding
    assert isinstance(info, EmbeddingInfo)
    assert (info.kind, info.pooling) == ("multi_vector", "")
    assert (info.query_length, info.document_length) == (QUERY_LENGTH, DOCUMENT_LENGTH)
