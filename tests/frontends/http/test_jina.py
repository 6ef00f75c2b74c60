"""Jina's fields of ``/v1/embeddings``, as its clients send them."""

from typing import Any

import httpx2
import pytest

from tests.frontends.conftest import EMBEDDER

LONG = "a cat sat " * 50


def embedded(http: httpx2.Client, **fields: Any) -> Any:
    answer = http.post("/v1/embeddings", json={"model": EMBEDDER, "input": ["a cat"], **fields})
    assert answer.status_code == 200, answer.text
    return [item["embedding"] for item in answer.json()["data"]]


def test_fields_have_jinas_names(http: httpx2.Client) -> None:
    packed = embedded(http, encoding_format="base64")
    assert embedded(http, embedding_type="base64") == packed
    # llama-index sends these.
    sent = {"encoding_type": "base64", "late_chunking": False, "task": "retrieval.passage"}
    assert embedded(http, **sent) == packed
    for value in (False, True):
        assert embedded(http, normalized=value) == embedded(http, normalize=value)
    assert embedded(http, normalized=True) != embedded(http, normalized=False)
    cut = embedded(http, input=LONG, truncate_prompt_tokens=-1)
    assert embedded(http, input=LONG, truncate=True) == cut


def test_defaults_of_vllm_change_nothing(http: httpx2.Client) -> None:
    sent = {
        "add_special_tokens": True,
        "priority": 0,
        "embed_dtype": "float32",
        "endianness": "native",
        "request_id": "a",
    }
    assert embedded(http, **sent) == embedded(http)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"late_chunking": True}, "late_chunking"),
        ({"embedding_type": "binary"}, "embedding_type"),
        ({"embedding_type": "float", "encoding_format": "float"}, "embedding_type"),
        ({"normalized": True, "normalize": True}, "normalized"),
        ({"truncate": True, "truncate_prompt_tokens": 3}, "truncate"),
        ({"input": LONG, "truncate": False}, "input"),
        ({"embed_dtype": "float16"}, "embed_dtype"),
        ({"priority": 1}, "priority"),
    ],
)
def test_errors_name_the_field(http: httpx2.Client, fields: dict[str, Any], name: str) -> None:
    answer = http.post("/v1/embeddings", json={"model": EMBEDDER, "input": "a", **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(name)
