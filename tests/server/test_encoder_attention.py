"""Attend, and the encoder's attention of encoder-decoders, over gRPC on real bundles."""

import asyncio
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from client.aio import AsyncClient
from client.encoder_types import AttendedText, LongInput
from client.errors import TriuneError
from client.sync import Client
from client.types import AttentionKind, AttentionOptions
from model.bundle import AttentionKind as Kind
from protos.triune.v1 import inference_pb2 as pb
from protos.triune.v1 import inference_pb2_grpc
from server.bounds import MAX_ATTENTION_WEIGHTS
from server.engine.decoding.options import AttentionSelection
from server.errors import InvalidArgumentError
from server.service.attention import AttentionPlan, check_encoder_attention
from tests import heads
from tests.compatibility.server import ARCHIVE
from tests.serving import ServerProcess, server_process

TEXT = "Ángela met études 🙂"
LONG = " ".join(f"word{index}" for index in range(40))
DATE = "3 march 2021"


@pytest.fixture(scope="module")
def server(head_bundles: Path) -> Iterator[ServerProcess]:
    with server_process(head_bundles, "--threads", "1") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target, timeout_seconds=60) as client:
        yield client


def expected_of(name: str, *texts: str) -> Any:
    """``[layers, heads, length, length]``, by transformers."""
    with torch.no_grad():
        encoded = heads.tokenizer()(*texts, return_tensors="pt")
        weights = heads.model(name)(**encoded, output_attentions=True).attentions
    return torch.stack(weights)[:, 0].numpy()


def weights_of(output: AttendedText) -> Any:
    return np.array([matrix.weights for matrix in output.matrices])


def refusal_of(client: Client, model: str, *texts: str, **options: Any) -> TriuneError:
    with pytest.raises(TriuneError) as caught:
        client.attend(model, texts, **options)
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
    return caught.value


def field_of(error: TriuneError) -> str:
    (violation,) = error.violations
    return violation.field


@pytest.mark.parametrize("name", heads.NAMES)
def test_encoders_of_every_task_return_the_weights_of_transformers(
    client: Client, name: str
) -> None:
    texts = [TEXT, "a longer text that runs alone too", "x"]
    result = client.attend(name, texts)
    for text, output in zip(texts, result.outputs, strict=True):
        expected = expected_of(name, text)
        places = [(matrix.layer, matrix.head) for matrix in output.matrices]
        assert places == [(layer, head) for layer in range(2) for head in range(4)]
        np.testing.assert_allclose(
            weights_of(output), expected.reshape(8, *expected.shape[2:]), atol=1e-5
        )
        assert expected.std() > 1e-3
    assert result.usage.input_tokens == sum(len(output.tokens) for output in result.outputs)
    spans = result.outputs[0].tokens
    assert (spans[0].token, spans[-1].token) == ("[CLS]", "[SEP]")
    assert [TEXT[span.start : span.end] for span in spans[1:4]] == ["Ángela", "met", "études"]


def test_returns_chosen_layers_and_heads_or_their_mean(client: Client) -> None:
    whole = expected_of("embedder", TEXT)
    (output,) = client.attend("embedder", TEXT, layers=(1, 0), heads=(3, 1)).outputs
    places = [(matrix.layer, matrix.head) for matrix in output.matrices]
    assert places == [(1, 3), (1, 1), (0, 3), (0, 1)]
    chosen = [whole[layer, head] for layer, head in places]
    np.testing.assert_allclose(weights_of(output), chosen, atol=1e-5)
    (mean,) = client.attend("embedder", TEXT, layers=(1,), heads=(3, 1), average=True).outputs
    (matrix,) = mean.matrices
    assert (matrix.layer, matrix.head) == (-1, -1)
    np.testing.assert_allclose(matrix.weights, whole[1, [3, 1]].mean(0), atol=1e-5)
    (mean,) = client.attend("embedder", TEXT, average=True).outputs
    np.testing.assert_allclose(mean.matrices[0].weights, whole.mean((0, 1)), atol=1e-5)


def test_pairs_say_which_text_each_token_is_in(client: Client) -> None:
    pair = ("Who met?", "Ángela met études")
    (output,) = client.attend("judge", pairs=[pair]).outputs
    np.testing.assert_allclose(
        weights_of(output),
        expected_of("judge", *pair).reshape(8, *[len(output.tokens)] * 2),
        atol=1e-5,
    )
    found = [(pair[span.text][span.start : span.end], span.text) for span in output.tokens]
    words = [("who", 0), ("met", 0), ("?", 0), ("", 0), ("ángela", 1), ("met", 1)]
    assert [(text.lower(), number) for text, number in found[1:7]] == words


@pytest.mark.parametrize("side", [LongInput.TRUNCATE_LEFT, LongInput.TRUNCATE_RIGHT])
def test_long_texts_are_truncated(client: Client, side: LongInput) -> None:
    (output,) = client.attend("embedder", LONG, long_input=side, max_tokens=12).outputs
    assert len(output.tokens) == 12 == len(output.matrices[0].weights)
    assert output.reading.truncated_tokens > 0
    kept = output.tokens[1:-1]
    end = kept[-1].end if side == LongInput.TRUNCATE_LEFT else len(LONG)
    assert end == len(LONG)
    assert (kept[0].start == 0) == (side == LongInput.TRUNCATE_RIGHT)
    # The vocabulary splits each word into the word and its number.
    assert LONG[kept[0].start : kept[1].end].startswith("word")


def test_texts_of_other_calls_share_no_batch_with_attention(server: ServerProcess) -> None:
    texts = [TEXT, LONG[:60], "a b", "c"]

    async def run() -> None:
        async with AsyncClient(server.target, timeout_seconds=60) as client:
            embedded = await client.embed("embedder", texts)
            calls = [client.attend("embedder", text) for text in texts]
            others = [client.embed("embedder", texts) for _ in range(3)]
            attended = await asyncio.gather(*calls)
            for again in await asyncio.gather(*others):
                for vector, alone in zip(again.outputs, embedded.outputs, strict=True):
                    np.testing.assert_allclose(vector.values, alone.values, atol=1e-5)
        for text, result in zip(texts, attended, strict=True):
            (output,) = result.outputs
            expected = expected_of("embedder", text)
            np.testing.assert_allclose(weights_of(output)[0], expected[0, 0], atol=1e-5)

    asyncio.run(run())


def test_errors_name_the_field(server: ServerProcess, client: Client) -> None:
    assert field_of(refusal_of(client, "embedder", TEXT, layers=(0, 2))) == "attention.layers[1]"
    assert field_of(refusal_of(client, "embedder", TEXT, heads=(-1,))) == "attention.heads[0]"
    assert field_of(refusal_of(client, "embedder")) == "inputs"
    assert field_of(refusal_of(client, "embedder", LONG)) == "inputs[0]"
    windows = {"long_input": LongInput.WINDOWS}
    assert field_of(refusal_of(client, "embedder", TEXT, **windows)) == "length.long_input"
    both = refusal_of(client, "embedder", TEXT, pairs=[("a", "b")])
    assert field_of(both) == "pairs"
    with grpc.insecure_channel(server.target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for options, message in (
            (pb.AttentionOptions(kind=pb.ATTENTION_KIND_CROSS), "attention.kind"),
            (pb.AttentionOptions(alignments=True), "attention.alignments"),
        ):
            request = pb.AttendRequest(model="embedder", inputs=[TEXT], attention=options)
            with pytest.raises(grpc.RpcError, match=message):
                stub.Attend(request)


def test_replies_over_the_limit_are_rejected_before_running(client: Client) -> None:
    texts = ["a " * 30] * 1100  # 8 matrices of 32 x 32 weights each
    error = refusal_of(client, "embedder", *texts)
    assert field_of(error) == "attention"
    assert f"could be {1100 * 8 * 32 * 32} weights" in str(error)
    client.attend("embedder", texts, average=True)


def test_memory_of_one_text_is_limited() -> None:
    layers, heads_ = tuple(range(22)), tuple(range(12))
    selection = AttentionSelection(Kind.ENCODER, layers, heads_, average=True)
    plan = AttentionPlan(selection, alignments=False, num_heads=12)
    assert 34 * 1404**2 < MAX_ATTENTION_WEIGHTS < 34 * 1405**2
    check_encoder_attention(plan, [1404])
    with pytest.raises(InvalidArgumentError, match="shorten the text"):
        check_encoder_attention(plan, [3, 1405])


def test_bundles_of_earlier_versions_say_how_to_get_it(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    with (
        server_process(tmp_path, "--threads", "1") as old,
        Client(old.target, timeout_seconds=60) as client,
    ):
        error = refusal_of(client, "embedder", TEXT)
        assert field_of(error) == "attention"
        assert "export it again" in str(error)
        with pytest.raises(TriuneError, match="export it again"):
            client.translate("dates", DATE, attention=AttentionOptions(kind=AttentionKind.ENCODER))


@pytest.fixture(scope="module")
def text_client(tiny_bundles: Path) -> Iterator[Client]:
    with (
        server_process(tiny_bundles, "--threads", "1") as running,
        Client(running.target, timeout_seconds=60) as client,
    ):
        yield client


def test_encoder_decoders_return_their_encoders_attention(text_client: Client) -> None:
    options = AttentionOptions(kind=AttentionKind.ENCODER)
    outputs = text_client.translate("dates", [DATE, "4 may 2020"], attention=options).outputs
    assert outputs[0].text == "2021-03-03"
    attentions = [output.attention for output in outputs if output.attention is not None]
    assert len(attentions) == len(outputs)
    for attention in attentions:
        assert attention.source_tokens == attention.target_tokens
        weights = np.array([matrix.weights for matrix in attention.matrices])
        assert weights.shape[1:] == (len(attention.source_tokens),) * 2
        np.testing.assert_allclose(weights.sum(2), 1, atol=1e-5)
        assert weights.std() > 1e-3
    chosen = AttentionOptions(kind=AttentionKind.ENCODER, layers=(1,), heads=(0, 2), average=True)
    streamed = list(text_client.translate_stream("dates", "4 may 2020", attention=chosen))
    averaged = streamed[-1].attention
    assert averaged is not None
    selected = [
        matrix.weights
        for matrix in attentions[1].matrices
        if matrix.layer == 1 and matrix.head in (0, 2)
    ]
    np.testing.assert_allclose(averaged.matrices[0].weights, np.mean(selected, 0), atol=1e-5)


def test_models_without_an_encoder_are_refused(text_client: Client) -> None:
    for model in ("dates", "tiny-decoder"):
        assert field_of(refusal_of(text_client, model, "7")) == "model"
    options = AttentionOptions(kind=AttentionKind.ENCODER)
    with pytest.raises(TriuneError) as caught:
        text_client.generate("tiny-decoder", "7", attention=options)
    assert field_of(caught.value) == "response.attention.kind"
