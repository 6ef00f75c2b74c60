"""Compressed bodies are refused as such by every protocol."""

import gzip
import json
from typing import Any

import httpx2
import pytest

from tests.frontends.conftest import EMBEDDER

TENSOR = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": EMBEDDER, "input": "a"}),
        ("/rerank", {"model": EMBEDDER, "query": "a", "documents": ["b"]}),
        (f"/{EMBEDDER}/embed", {"inputs": "a"}),
        (f"/v2/models/{EMBEDDER}/infer", {"inputs": [TENSOR]}),
        ("/detect", {"q": "a"}),
    ],
)
def test_the_header_is_named(http: httpx2.Client, path: str, body: dict[str, Any]) -> None:
    content, headers = json.dumps(body).encode(), {"content-type": "application/json"}
    plain = http.post(path, content=content, headers={**headers, "content-encoding": "Identity"})
    assert plain.status_code == http.post(path, json=body).status_code
    for encoding in ("gzip", "identity, gzip"):
        answer = http.post(
            path,
            content=gzip.compress(content),
            headers={**headers, "content-encoding": encoding},
        )
        assert answer.status_code == 415
        assert answer.headers["accept-encoding"] == "identity"
        assert "content-encoding: compressed bodies are not supported" in answer.text
