"""Embed: encodings, prompts, dimensions, token vectors and streaming."""

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from client.aio import AsyncClient
from client.encoder_types import EncodingFormat, LongInput
from client.errors import TriuneError
from client.sync import Client
from protos.triune.v1 import inference_pb2 as pb
from protos.triune.v1 import inference_pb2_grpc
from server.service.embed_stream import MAX_STREAM_REQUESTS
from tests import heads
from tests.serving import ServerProcess, server_process

TEXT = "Ángela met études 🙂"


@pytest.fixture(scope="module")
def server(head_bundles: Path) -> Iterator[ServerProcess]:
    with server_process(head_bundles, "--threads", "1") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target, timeout_seconds=60) as client:
        yield client


def token_vectors(text: str) -> Any:
    with torch.no_grad():
        encoded = heads.tokenizer()(text, return_tensors="pt")
        return heads.model("embedder")(**encoded).last_hidden_state[0].numpy()


def invalid_field(client: Client, **options: Any) -> str:
    with pytest.raises(TriuneError) as caught:
        client.embed("embedder", "x", **options)
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
    return caught.value.violations[0].field


def test_all_encodings_return_the_same_vector(server: ServerProcess, client: Client) -> None:
    expected = token_vectors(TEXT).mean(0)
    for encoding, tolerance in zip(EncodingFormat, (1e-5, 1e-5, 2e-3), strict=True):
        (output,) = client.embed("embedder", TEXT, encoding_format=encoding).outputs
        np.testing.assert_allclose(output.values, expected, rtol=0, atol=tolerance)
    # The response holds either floats (default) or packed bytes.
    with grpc.insecure_channel(server.target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        plain = stub.Embed(pb.EmbedRequest(model="embedder", inputs=[TEXT])).outputs[0]
        assert (len(plain.values), plain.packed) == (heads.SIZE, b"")
        options = pb.EmbedOptions(encoding_format=pb.ENCODING_FORMAT_FLOAT16_BYTES)
        request = pb.EmbedRequest(model="embedder", inputs=[TEXT], options=options)
        packed = stub.Embed(request).outputs[0]
        assert (len(packed.values), len(packed.packed)) == (0, 2 * heads.SIZE)


def test_truncates_and_normalizes_vectors(client: Client) -> None:
    whole = np.array(client.embed("embedder", TEXT).outputs[0].values)
    cut = np.array(client.embed("embedder", TEXT, dimensions=8).outputs[0].values)
    np.testing.assert_array_equal(cut, whole[:8])
    unit = np.array(client.embed("embedder", TEXT, dimensions=8, normalize=True).outputs[0].values)
    np.testing.assert_allclose(unit, cut / np.linalg.norm(cut), atol=1e-6)
    assert invalid_field(client, dimensions=9) == "options.dimensions"
    assert invalid_field(client, dimensions=0) == "options.dimensions"


def test_prepends_the_prompt_to_the_text(client: Client) -> None:
    by_name = client.embed("embedder", TEXT, prompt_name="query").outputs[0]
    by_text = client.embed("embedder", TEXT, prompt="query: ").outputs[0]
    joined = client.embed("embedder", "query: " + TEXT).outputs[0]
    assert by_name.values == by_text.values == joined.values
    assert by_name.values != client.embed("embedder", TEXT).outputs[0].values
    assert invalid_field(client, prompt_name="other") == "options.prompt_name"
    assert invalid_field(client, prompt_name="query", prompt="x") == "options.prompt_name"


def test_returns_token_vectors(client: Client) -> None:
    mixed = client.embed("embedder", [TEXT, "x"], token_embeddings=True)
    tokens = mixed.outputs[0].tokens
    encoded = heads.tokenizer()(TEXT, return_offsets_mapping=True)
    assert [t.token for t in tokens] == heads.tokenizer().convert_ids_to_tokens(
        encoded["input_ids"]
    )
    assert [(t.start, t.end) for t in tokens] == encoded["offset_mapping"]
    np.testing.assert_allclose([t.values for t in tokens], token_vectors(TEXT), atol=1e-4)
    assert len(mixed.outputs[1].tokens) == 3
    assert client.embed("embedder", TEXT).outputs[0].tokens == ()
    windows = invalid_field(client, token_embeddings=True, long_input=LongInput.WINDOWS)
    assert windows == "length.long_input"


def test_stream_returns_unary_results_in_order(client: Client) -> None:
    batches = [[f"text {i}", f"é {i}"] for i in range(24)]
    streamed = list(client.embed_stream("embedder", batches, dimensions=16))
    assert [batch.id for batch in streamed] == list(range(24))
    for batch, texts in zip(streamed, batches, strict=True):
        alone = client.embed("embedder", texts, dimensions=16).outputs
        for actual, expected in zip(batch.outputs, alone, strict=True):
            np.testing.assert_allclose(actual.values, expected.values, atol=1e-5)


def test_stream_waits_while_the_queue_is_full(client: Client) -> None:
    """Three batches together exceed the queue limit of 8,192."""
    streamed = list(client.embed_stream("embedder", [["x"] * 3000] * 3, dimensions=8))
    assert [len(batch.outputs) for batch in streamed] == [3000] * 3


def test_client_may_wait_for_each_response_of_a_stream(client: Client) -> None:
    answered = threading.Event()
    answered.set()

    def batches() -> Iterator[str]:
        for number in range(3):
            assert answered.wait(timeout=30)
            answered.clear()
            yield f"text {number}"

    ids = []
    for batch in client.embed_stream("embedder", batches()):
        ids.append(batch.id)
        answered.set()
    assert ids == [0, 1, 2]


async def test_stream_applies_backpressure_to_a_fast_sender(server: ServerProcess) -> None:
    """The client offers 640 MB but reads few responses, so the server accepts little."""
    num_taken = 0
    batch_bytes, longest = 1 << 16, 10_000
    text = "word " * (batch_bytes // 5)

    async def batches() -> AsyncIterator[list[str]]:
        nonlocal num_taken
        for _ in range(longest):
            num_taken += 1
            yield [text]

    async with AsyncClient(server.target, timeout_seconds=60) as client:
        stream = client.embed_stream("embedder", batches(), long_input=LongInput.TRUNCATE_RIGHT)
        first = await anext(stream)
        assert first.id == 0
        rest = [await anext(stream) for _ in range(20)]
        assert [batch.id for batch in rest] == list(range(1, 21))
        # The server buffers a few requests, the transport at most 32 MiB.
        in_transport = (32 << 20) // batch_bytes
        assert num_taken < 21 + MAX_STREAM_REQUESTS + in_transport < longest // 10
        await stream.aclose()
        assert len((await client.embed("embedder", "still there")).outputs[0].values) == heads.SIZE


def test_invalid_message_ends_the_stream_with_its_status(client: Client) -> None:
    stream = client.embed_stream("embedder", ["good", " "])
    assert next(stream).id == 0
    with pytest.raises(TriuneError) as caught:
        next(stream)
    assert caught.value.violations[0].field == "inputs[0]"


def test_version_alone_applies_to_the_messages_after_it(server: ServerProcess) -> None:
    """The first two messages name the version that exists; the third another, without the model."""
    requests = [
        pb.EmbedStreamRequest(id=0, model="embedder", inputs=[TEXT]),
        pb.EmbedStreamRequest(id=1, version="1", inputs=[TEXT]),
        pb.EmbedStreamRequest(id=2, version="9", inputs=[TEXT]),
    ]
    received: list[int] = []
    with grpc.insecure_channel(server.target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            received.extend(response.id for response in stub.EmbedStream(iter(requests)))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert "embedder/9" in str(caught.value.details())
    assert received == [0, 1]


def test_metrics_count_calls(server: ServerProcess, client: Client) -> None:
    client.tag("tagger", TEXT)
    list(client.embed_stream("embedder", [TEXT]))
    metrics = urllib.request.urlopen(server.metrics_url).read().decode()
    for method, model in (("Tag", "tagger"), ("EmbedStream", "embedder")):
        line = f'method="{method}",model="{model}",status="OK"'
        assert line in metrics
    assert 'triune_tokens_total{direction="in",model="tagger"}' in metrics


@pytest.mark.parametrize(
    "arguments",
    [
        ("tag", "--model", "tagger", TEXT),
        ("fill-mask", "--model", "filler", "a [MASK]", "--top-k", "2"),
        ("answer", "--model", "answerer", "--question", "Who?", TEXT),
        ("rerank", "--model", "judge", "--query", "Who?", TEXT, "x"),
        ("classify", "--model", "judge", "x", "--pair", "y"),
        ("embed", "--model", "embedder", TEXT),
    ],
)
def test_command_line_prints_embeddings(server: ServerProcess, arguments: tuple[str, ...]) -> None:
    def run(*more: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "client", *arguments, *more],
            env={**os.environ, "TRIUNE_TARGET": server.target},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout

    response = json.loads(run("--json"))
    assert list(response) == ["model", "outputs", "usage", "timing"]
    assert response["usage"]["input_tokens"] > 0
    element_type = float if arguments[0] == "embed" else dict
    first = response["outputs"][0][0] if element_type is float else response["outputs"][0]
    assert isinstance(first, element_type)
    assert run().strip()
