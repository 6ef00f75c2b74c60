"""llama-index's client of text-embeddings-inference, unmodified, in an environment of its own."""

import json
import subprocess
from pathlib import Path

import pytest

from client.sync import Client
from tests.environments import environment
from tests.frontends.conftest import EMBEDDER
from tests.serving import ServerProcess

pytestmark = pytest.mark.slow

PACKAGE = "llama-index-embeddings-text-embeddings-inference==0.6.0"
TEXTS = ["a cat sat", "two dogs ran", "unaffable"]
PROGRAM = """
import asyncio, json, sys
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
base_url, texts = sys.argv[1], json.loads(sys.argv[2])
model = TextEmbeddingsInference(model_name="none", base_url=base_url, embed_batch_size=2)
both = [model.get_text_embedding_batch(texts), asyncio.run(model.aget_text_embedding_batch(texts))]
print(json.dumps(both))
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return environment(PACKAGE) / "python"


@pytest.mark.timeout(900)
def test_llama_index(server: ServerProcess, python: Path) -> None:
    url = f"{server.http_url}/{EMBEDDER}"
    command = [str(python), "-c", PROGRAM, url, json.dumps(TEXTS)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    with Client(server.target) as client:
        outputs = client.embed(EMBEDDER, TEXTS, normalize=True).outputs
    expected = [list(output.values) for output in outputs]
    for given in json.loads(ran.stdout):
        for vector, own in zip(given, expected, strict=True):
            assert vector == pytest.approx(own, abs=1e-6)
