"""Classify with recordings, end to end: small random models."""

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx2
import numpy as np
import pytest
from huggingface_hub import InferenceClient

from client.aio import AsyncClient
from client.encoder_types import Classification, LongInput, ScoreFunction
from client.sync import Client
from export.speech import FOLDER, recording
from model.audio import Samples
from model.bundle_files import read_manifest
from protos.inference import open_inference_pb2, open_inference_pb2_grpc
from server.bounds import MAX_RECORDINGS
from server.service.audio_windows import AudioWindow, split_windows
from tests import audio_models
from tests.audio_models import LABELS
from tests.recordings import encoded, wav
from tests.server.clients import connected
from tests.server.encoder_calls import error_of
from tests.server.oip.messages import infer_request, outputs_of
from tests.serving import ServerProcess, server_process
from tests.waveform_bundles import write_bundles

MODEL = "sounds"
SHORT_WINDOWS = "sounds-short"  # the same with windows of 2 s
RATE = 16_000
NAMES = ("austen-2", "cards-1", "austen-5", "cards-4")
Floats = np.ndarray[Any, Any]


class Reference:
    """The model in transformers."""

    def __init__(self, folder: Path) -> None:
        self.extractor = audio_models.save(folder)
        self.network = audio_models.network()

    def logits(self, samples: Samples) -> Floats:
        return audio_models.expected_logits(self.network, self.extractor, samples)

    def mean_logits(self, samples: Samples, windows: list[AudioWindow]) -> Floats:
        parts = [self.logits(samples[window.start : window.stop]) for window in windows]
        mean: Floats = np.average(parts, 0, [window.num_samples for window in windows])
        return mean


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, root = tmp_path_factory.mktemp("checkpoint"), tmp_path_factory.mktemp("bundles")
    audio_models.save(folder)
    write_bundles(folder, root, MODEL, SHORT_WINDOWS)
    return root


@pytest.fixture(scope="module")
def server(bundles: Path) -> Iterator[ServerProcess]:
    with server_process(bundles, "--threads", "1") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target, timeout_seconds=60) as client:
        yield client


def logits_of(output: Classification) -> list[float]:
    """The scores of a call with ``ScoreFunction.IDENTITY``, in the order of the labels."""
    scores = {label.label: label.score for label in output.labels}
    return [scores[label] for label in LABELS]


def check_logits(output: Classification, expected: Floats) -> None:
    assert logits_of(output) == pytest.approx(expected.tolist(), abs=1e-4)


def test_labels_are_those_of_transformers(client: Client, reference: Reference) -> None:
    for name in NAMES:
        samples = recording(name, RATE)
        result = client.classify(MODEL, audio=wav(samples))
        (output,) = result.outputs
        expected = reference.logits(samples)
        weights = np.exp(expected - expected.max())
        order = np.argsort(-expected)
        assert [label.label for label in output.labels] == [LABELS[index] for index in order]
        assert [label.score for label in output.labels] == pytest.approx(
            (weights / weights.sum())[order].tolist(), abs=1e-4
        )
        assert output.usage.input_tokens == (len(samples) - 400) // 320 + 1
        assert (output.reading.windows, output.reading.truncated_tokens) == (1, 0)
        assert result.timing.tokenize_seconds > 0


def test_recordings_of_a_request_and_of_others(client: Client, reference: Reference) -> None:
    recordings = [recording(name, RATE) for name in NAMES]
    expected = [reference.logits(samples) for samples in recordings]

    def outputs(_: int) -> list[Classification]:
        files = [wav(samples) for samples in recordings]
        function = ScoreFunction.IDENTITY
        return list(client.classify(MODEL, audio=files, score_function=function).outputs)

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(outputs, range(8)):
            for output, logits in zip(found, expected, strict=True):
                check_logits(output, logits)


def test_every_format_is_read(client: Client) -> None:
    samples = recording("cards-1", RATE)
    (expected,) = client.classify(MODEL, audio=wav(samples)).outputs
    for name in ("flac", "alac", "wav, 24 bits", "flac in ogg"):
        (output,) = client.classify(MODEL, audio=encoded(name, samples, RATE)).outputs
        assert output.labels == expected.labels
    (output,) = client.classify(MODEL, audio=(FOLDER / "cards-1.opus").read_bytes()).outputs
    assert output.labels == expected.labels


def test_long_recordings_have_the_mean_of_their_windows(
    client: Client, reference: Reference, bundles: Path
) -> None:
    samples = np.concatenate([recording(name, RATE) for name in NAMES])
    spec = read_manifest(bundles / SHORT_WINDOWS / "1").audio
    assert spec is not None
    windows = split_windows(samples, spec)
    assert len(windows) > 3
    short = recording("cards-1", RATE)[:RATE]
    long, other = client.classify(
        SHORT_WINDOWS, audio=[wav(samples), wav(short)], score_function=ScoreFunction.IDENTITY
    ).outputs
    assert (long.reading.windows, other.reading.windows) == (len(windows), 1)
    check_logits(long, reference.mean_logits(samples, windows))
    check_logits(other, reference.logits(short))
    assert long.usage.input_tokens == sum(spec.tokens_of(x.num_samples) for x in windows)


@pytest.mark.parametrize(
    ("long_input", "part"),
    [
        (LongInput.TRUNCATE_RIGHT, slice(0, 2 * RATE)),
        (LongInput.TRUNCATE_LEFT, slice(-2 * RATE, None)),
    ],
)
def test_long_recordings_are_truncated_if_asked(
    client: Client, reference: Reference, long_input: LongInput, part: slice
) -> None:
    samples = recording("austen-2", RATE)
    (output,) = client.classify(
        SHORT_WINDOWS,
        audio=wav(samples),
        long_input=long_input,
        score_function=ScoreFunction.IDENTITY,
    ).outputs
    check_logits(output, reference.logits(samples[part]))
    assert output.reading.windows == 1
    dropped = len(samples) - 2 * RATE
    assert output.reading.truncated_tokens == pytest.approx(dropped / 320, abs=1)


def test_long_recordings_are_refused_if_asked(client: Client) -> None:
    samples = recording("austen-2", RATE)
    error = error_of(
        lambda: client.classify(
            SHORT_WINDOWS, audio=[wav(samples[:RATE]), wav(samples)], long_input=LongInput.ERROR
        )
    )
    seconds = len(samples) / RATE
    expected = f"audio[1]: lasts {seconds:.1f} seconds, at most 2 are accepted"
    assert error.message == expected
    (output,) = client.classify(MODEL, audio=wav(samples), long_input=LongInput.ERROR).outputs
    assert output.reading.windows == 1


def test_a_recording_shorter_than_a_frame_is_read(client: Client) -> None:
    samples = recording("austen-2", RATE)[8000:8100]
    (output,) = client.classify(MODEL, audio=wav(samples)).outputs
    assert output.usage.input_tokens == 1


def test_silence_has_labels_too(client: Client, reference: Reference) -> None:
    silence = np.zeros(RATE, np.int16)
    (output,) = client.classify(
        MODEL, audio=wav(silence), score_function=ScoreFunction.IDENTITY
    ).outputs
    check_logits(output, reference.logits(silence))


SOUND = wav(np.zeros(8000, np.int16))
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "audio: must not be empty": (MODEL, {}),
    f"inputs: {MODEL!r} takes recordings, not texts": (MODEL, {"inputs": "a text"}),
    f"images: {MODEL!r} takes recordings, not images": (MODEL, {"inputs": b"an image"}),
    "inputs: does not apply to recordings": (MODEL, {"inputs": "a text", "audio": SOUND}),
    "images: does not apply to recordings": (MODEL, {"inputs": b"x", "audio": SOUND}),
    "pairs: does not apply to recordings": (MODEL, {"pairs": [("a", "b")], "audio": SOUND}),
    "length.max_tokens: does not apply to recordings": (MODEL, {"audio": SOUND, "max_tokens": 8}),
    "length.stride: does not apply to recordings": (MODEL, {"audio": SOUND, "stride": 8}),
    "audio[1]: the recording is empty": (MODEL, {"audio": [SOUND, wav(np.zeros(0, np.int16))]}),
    f"audio: {MAX_RECORDINGS + 1} given, at most {MAX_RECORDINGS}": (
        *(MODEL, {"audio": [b""] * (MAX_RECORDINGS + 1)}),
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(client: Client, message: str) -> None:
    model, arguments = REFUSED[message]
    error = error_of(lambda: client.classify(model, **arguments))
    assert error.message == message


@pytest.mark.parametrize("data", [b"", b"RIFF", b"\x00" * 4096, SOUND[:20], b"<svg/>"])
def test_damaged_recordings_are_refused(client: Client, data: bytes) -> None:
    error = error_of(lambda: client.classify(MODEL, audio=[SOUND, data]))
    assert error.message.startswith("audio[1]: the recording ")
    assert client.classify(MODEL, audio=SOUND).outputs


def test_windows_of_a_request_are_bounded(client: Client) -> None:
    """70 minutes of silence in a small file, twice: more windows of 2 s than a request may have."""
    silence = encoded("flac", np.zeros(70 * 60 * 8000, np.int16), 8000)
    assert len(silence) < 1 << 20
    error = error_of(lambda: client.classify(SHORT_WINDOWS, audio=[silence, silence]))
    assert error.message == (
        "audio[1]: needs 2100 windows, and 1996 are left of those that one request may have"
    )
    assert client.classify(SHORT_WINDOWS, audio=SOUND).outputs


def test_other_calls_are_refused(client: Client) -> None:
    error = error_of(lambda: client.transcribe(MODEL, SOUND))
    assert "it answers Classify of recordings" in error.message


async def test_asyncio_has_the_same_labels(server: ServerProcess, client: Client) -> None:
    file = wav(recording("cards-4", RATE))
    async with AsyncClient(server.target, timeout_seconds=60) as other:
        result = await other.classify(MODEL, audio=file)
    assert result.outputs == client.classify(MODEL, audio=file).outputs


def test_hugging_face_and_the_command_line_have_the_same_labels(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    file = wav(recording("austen-2", RATE))
    (expected,) = client.classify(MODEL, audio=file, top_k=3).outputs
    with InferenceClient(model=f"{server.http_url}/{MODEL}") as hub:
        found = hub.audio_classification(file)
        assert [(x.label, x.score) for x in found[:3]] == [
            (x.label, pytest.approx(x.score)) for x in expected.labels
        ]
        assert len(found) == len(LABELS)
        raw = hub.audio_classification(file, top_k=2, function_to_apply="none")
        (logits,) = client.classify(
            MODEL, audio=file, top_k=2, score_function=ScoreFunction.IDENTITY
        ).outputs
        assert [x.score for x in raw] == pytest.approx([x.score for x in logits.labels])
    path = tmp_path / "a.wav"
    path.write_bytes(file)
    arguments = ["classify", "--model", MODEL, "--audio", str(path), "--top-k", "3", "--json"]
    printed = subprocess.run(
        [sys.executable, "-m", "client", "--target", server.target, *arguments],
        check=True,
        capture_output=True,
    )
    labels = json.loads(printed.stdout)["outputs"][0]["labels"]
    assert [label["label"] for label in labels] == [label.label for label in expected.labels]


def test_the_open_inference_protocol_has_the_same_labels(
    server: ServerProcess, client: Client
) -> None:
    files = [wav(recording(name, RATE)) for name in ("cards-1", "cards-4")]
    expected = [
        [(label.label, label.score) for label in output.labels]
        for output in client.classify(MODEL, audio=files, top_k=2).outputs
    ]
    with grpc.insecure_channel(server.target) as channel:
        stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        metadata = stub.ModelMetadata(open_inference_pb2.ModelMetadataRequest(name=MODEL))
        assert [tensor.name for tensor in metadata.inputs] == ["audio_input"]
        raw = outputs_of(stub.ModelInfer(infer_request(MODEL, {"top_k": 2}, audio_input=files)))
        damaged = infer_request(MODEL, audio_input=[files[0], b"RIFF"])
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(damaged)
        assert str(caught.value.details()).startswith("audio_input[1]: the recording ")
    tensor = {
        "name": "audio_input",
        "datatype": "BYTES",
        "shape": [2],
        "data": [base64.b64encode(file).decode() for file in files],
    }
    options = {"parameters": {"top_k": 2}}
    with httpx2.Client(base_url=server.http_url, timeout=60) as http:
        path = f"/v2/models/{MODEL}/infer"
        answer = http.post(path, json={"inputs": [tensor], **options}).json()
        refused = http.post(path, json={"inputs": [tensor | {"name": "text_input"}]})
    tensors = {each["name"]: np.array(each["data"]) for each in answer["outputs"]}
    for labels, scores in (
        (raw["labels"], raw["scores"]),
        (tensors["labels"].reshape(2, 2), tensors["scores"].reshape(2, 2)),
    ):
        for names, values, wanted in zip(labels, scores, expected, strict=True):
            assert list(names) == [label for label, _ in wanted]
            assert list(values) == pytest.approx([score for _, score in wanted])
    assert refused.status_code == 400
    assert "text_input: is not an input of classify: audio_input" in refused.text


def test_text_models_refuse_recordings(tiny_bundles: Path) -> None:
    with connected(tiny_bundles, "--threads", "1") as texts:
        error = error_of(lambda: texts.classify("tiny-classifier", audio=SOUND))
    assert error.message == "audio: 'tiny-classifier' takes texts, not recordings"
