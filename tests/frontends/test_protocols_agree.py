"""The same request by each protocol gives the same tokens, scores, vectors and class of error.

A protocol adds itself to ``PROTOCOLS``: a class with the methods of ``Protocol``.
"""

import base64
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import grpc
import httpx2
import numpy as np
import pytest

from client.errors import TriuneError
from client.sync import Client
from tests.frontends.conftest import CLASSIFIER, DECODER, EMBEDDER, RERANKER
from tests.serving import ServerProcess

PROMPTS = ("7,", "100,101,")
TEXTS = ("a cat sat", "unaffable études")
# HTTP statuses by gRPC status.
STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


class FailedCallError(Exception):
    """A failed call, with the status as an HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Door(Protocol):
    """One protocol's client."""

    def __init__(self, server: ServerProcess) -> None: ...
    def close(self) -> None: ...
    def generate(self, model: str, prompts: Sequence[str], **options: Any) -> list[str]: ...
    def embed(self, model: str, texts: Sequence[str]) -> list[list[float]]: ...
    def rerank(self, model: str, query: str, documents: Sequence[str]) -> list[float]: ...


class Grpc:
    def __init__(self, server: ServerProcess) -> None:
        self._client = Client(server.target)

    def close(self) -> None:
        self._client.close()

    def generate(self, model: str, prompts: Sequence[str], **options: Any) -> list[str]:
        try:
            result = self._client.generate(model, prompts, **options)
        except TriuneError as error:
            raise FailedCallError(STATUSES[error.code]) from error
        return [output.text for output in result.outputs]

    def embed(self, model: str, texts: Sequence[str]) -> list[list[float]]:
        try:
            outputs = self._client.embed(model, texts).outputs
        except TriuneError as error:
            raise FailedCallError(STATUSES[error.code]) from error
        return [list(output.values) for output in outputs]

    def rerank(self, model: str, query: str, documents: Sequence[str]) -> list[float]:
        outputs = self._client.rerank(model, query, documents).outputs
        return [output.score for output in sorted(outputs, key=lambda output: output.index)]


class Http:
    """OpenAI's and Cohere's routes."""

    def __init__(self, server: ServerProcess) -> None:
        self._client = httpx2.Client(base_url=server.http_url)

    def close(self) -> None:
        self._client.close()

    def _post(self, path: str, **body: Any) -> Any:
        answer = self._client.post(path, json=body)
        if answer.status_code != 200:
            raise FailedCallError(answer.status_code)
        return answer.json()

    def generate(self, model: str, prompts: Sequence[str], **options: Any) -> list[str]:
        fields = {"temperature": 0, "max_tokens": options.pop("max_new_tokens", None), **options}
        answer = self._post("/v1/completions", model=model, prompt=list(prompts), **fields)
        return [choice["text"] for choice in answer["choices"]]

    def embed(self, model: str, texts: Sequence[str]) -> list[list[float]]:
        answer = self._post(
            "/v1/embeddings", model=model, input=list(texts), encoding_format="base64"
        )
        packed = [base64.b64decode(item["embedding"]) for item in answer["data"]]
        return [np.frombuffer(data, "<f4").tolist() for data in packed]

    def rerank(self, model: str, query: str, documents: Sequence[str]) -> list[float]:
        answer = self._post("/v2/rerank", model=model, query=query, documents=list(documents))
        results = sorted(answer["results"], key=lambda result: result["index"])
        return [result["relevance_score"] for result in results]


PROTOCOLS: dict[str, type[Door]] = {"http": Http}


@pytest.fixture
def reference(server: ServerProcess) -> Iterator[Grpc]:
    door = Grpc(server)
    yield door
    door.close()


@pytest.fixture(params=PROTOCOLS)
def door(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Door]:
    opened = PROTOCOLS[request.param](server)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 8, "ignore_eos": True},
        {"max_new_tokens": 8, "temperature": 1.5, "seed": 7, "top_k": 5, "min_p": 0.01},
        {"max_new_tokens": 8, "beam_size": 3, "length_penalty": 0.5},
        {"max_new_tokens": 8, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
        {"max_new_tokens": 8, "encoder_no_repeat_ngram_size": 1},
    ],
    ids=["greedy", "sampled", "beams", "penalties", "new-tokens"],
)
def test_texts_are_equal(reference: Grpc, door: Door, options: dict[str, Any]) -> None:
    expected = reference.generate(DECODER, PROMPTS, **options)
    assert all(expected)
    assert door.generate(DECODER, PROMPTS, **options) == expected


def test_vectors_and_scores_are_equal(reference: Grpc, door: Door) -> None:
    assert door.embed(EMBEDDER, TEXTS) == reference.embed(EMBEDDER, TEXTS)
    for model in (RERANKER, EMBEDDER):
        expected = reference.rerank(model, "cat", TEXTS)
        assert door.rerank(model, "cat", TEXTS) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("nothing", {}),
        (CLASSIFIER, {}),
        (DECODER, {"max_new_tokens": -1}),
        (DECODER, {"top_p": 2.0}),
        (DECODER, {"stop_token_ids": [10**6]}),
        (DECODER, {"max_new_tokens": 4, "min_new_tokens": 5}),
    ],
)
def test_errors_are_of_the_same_class(
    reference: Grpc, door: Door, model: str, options: dict[str, Any]
) -> None:
    with pytest.raises(FailedCallError) as expected:
        reference.generate(model, PROMPTS, **options)
    with pytest.raises(FailedCallError) as caught:
        door.generate(model, PROMPTS, **options)
    assert caught.value.status == expected.value.status
