"""Every call for texts or images, by every protocol, tells that a model takes speech.

And calls for speech tell that a model takes texts.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from protos.inference import open_inference_pb2_grpc
from protos.triune.v1 import inference_pb2_grpc
from tests.frontends.conftest import CLASSIFIER, DECODER, EMBEDDER, TRANSLATOR
from tests.frontends.every_call import (
    AUDIO,
    BODIES,
    CALLS,
    LANGUAGES,
    SENT_AS_STREAMS,
    STREAMS,
    TASKS,
    TEXTS,
    own_message,
    with_model,
)
from tests.pictures import encoded, picture
from tests.recordings import tone, wav
from tests.server.oip.messages import infer_request
from tests.serving import ServerProcess, server_process

pytestmark = pytest.mark.slow  # the models' export takes long

MODELS = ("speech", "speech-en")
TEXT_MODELS = (DECODER, EMBEDDER, CLASSIFIER, TRANSLATOR)
WAV = wav(tone(0.5, 16_000))
TEXT_CALLS = {name: call for name, call in CALLS.items() if not name.startswith("Transcribe")}
AUDIO_CALLS = {name: call for name, call in CALLS.items() if name.startswith("Transcribe")}
IMAGE_BODIES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": {"image": encoded(picture())}},
    "/classify": {"input": [{"image": encoded(picture())}]},
}


@pytest.fixture(scope="module")
def server(
    speech_bundles: Path, every_task: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("speech")
    for root, names in ((speech_bundles, MODELS), (every_task, TEXT_MODELS)):
        for name in names:
            shutil.copytree(root / name, folder / name)
    with server_process(folder, "--threads", "1") as running:
        yield running


@pytest.fixture(autouse=True)
def still_answers(http: httpx2.Client) -> Iterator[None]:
    yield
    assert transcribe(http, AUDIO[0], "speech").status_code == 200


def transcribe(http: httpx2.Client, path: str, model: str) -> httpx2.Response:
    fields = {"model": model, "language": "en", "temperature": "1"}  # one attempt
    return http.post(path, data=fields, files={"file": ("a.wav", WAV)})


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("path", BODIES)
def test_texts_are_refused_by_http(http: httpx2.Client, path: str, model: str) -> None:
    body = BODIES[path] if "{model}" in path else {"model": model, **BODIES[path]}
    answer = http.post(path.replace("{model}", model).replace("{version}", "1"), json=body)
    assert answer.status_code in (400, 413, 424), answer.text
    message = own_message(path, answer)
    if "/v2/models" in path:
        assert message == "text_input: is not an input of transcribe: audio_input"
    else:
        assert "speech" in message.replace(f"'{model}'", "")


def test_only_models_with_labels_are_classifiers(http: httpx2.Client) -> None:
    kinds = {
        model: http.get(f"/{model}/info").json()["model_type"]
        for model in ("speech", DECODER, TRANSLATOR, CLASSIFIER)
    }
    labels = kinds.pop(CLASSIFIER)["classifier"]["id2label"]
    assert list(labels.values()) == ["a", "b", "c"]
    assert set(kinds.values()) == {None}


@pytest.mark.parametrize("path", STREAMS)
def test_texts_are_refused_before_a_stream_begins(http: httpx2.Client, path: str) -> None:
    answer = http.post(path, json={"model": "speech", "stream": True, **BODIES[path]})
    assert answer.status_code == 400
    assert "of speech" in own_message(path, answer)


@pytest.mark.parametrize("path", IMAGE_BODIES)
def test_images_are_refused(http: httpx2.Client, path: str) -> None:
    answer = http.post(path, json={"model": "speech", **IMAGE_BODIES[path]})
    assert answer.status_code == 400
    assert "of speech" in own_message(path, answer)


@pytest.mark.parametrize("path", LANGUAGES)
def test_models_of_speech_do_not_translate_texts(http: httpx2.Client, path: str) -> None:
    answer = http.post(path, json=LANGUAGES[path])
    assert answer.status_code == 400
    assert "no translation model is served" in own_message(path, answer)
    assert http.get("/languages").json() == []


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", TEXT_CALLS)
def test_texts_are_refused_by_grpc(channel: grpc.Channel, name: str, model: str) -> None:
    assert "speech" in refusal(channel, name, model).replace(f"'{model}'", "")


@pytest.mark.parametrize("model", TEXT_MODELS)
@pytest.mark.parametrize("name", AUDIO_CALLS)
def test_speech_is_refused_by_grpc(channel: grpc.Channel, name: str, model: str) -> None:
    message = refusal(channel, name, model)
    assert message.startswith(f"model: '{model}' does not answer Transcribe; ")


def refusal(channel: grpc.Channel, name: str, model: str) -> str:
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    request = with_model(CALLS[name], model)
    messages = iter([request]) if name in SENT_AS_STREAMS else request
    with pytest.raises(grpc.RpcError) as caught:
        list(getattr(stub, name)(messages))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    return str(caught.value.details())


@pytest.mark.parametrize("model", TEXT_MODELS)
@pytest.mark.parametrize("path", AUDIO)
def test_speech_is_refused_by_http(http: httpx2.Client, path: str, model: str) -> None:
    answer = transcribe(http, path, model)
    assert answer.status_code == 400
    assert own_message(path, answer).startswith(f"model: '{model}' does not answer Transcribe; ")


@pytest.mark.parametrize("is_stream", [False, True], ids=["ModelInfer", "ModelStreamInfer"])
@pytest.mark.parametrize("task", [None, "transcribe", *TASKS])
def test_texts_are_refused_by_the_open_inference_protocol(
    channel: grpc.Channel, task: str | None, is_stream: bool
) -> None:
    expected = "text_input: is not an input of transcribe: audio_input"
    if task not in (None, "transcribe"):
        expected = f"parameters.task: '{task}' is not a task of 'speech': transcribe"
    assert oip_refusal(channel, "speech", task, is_stream, text_input=TEXTS) == expected


@pytest.mark.parametrize("is_stream", [False, True], ids=["ModelInfer", "ModelStreamInfer"])
@pytest.mark.parametrize("model", TEXT_MODELS)
def test_speech_is_refused_by_the_open_inference_protocol(
    channel: grpc.Channel, model: str, is_stream: bool
) -> None:
    message = oip_refusal(channel, model, None, is_stream, audio_input=[WAV])
    assert message.startswith("audio_input: is not an input of ")
    message = oip_refusal(channel, model, "transcribe", is_stream, audio_input=[WAV])
    assert message.startswith(f"parameters.task: 'transcribe' is not a task of '{model}': ")


def oip_refusal(
    channel: grpc.Channel, model: str, task: str | None, is_stream: bool, **inputs: object
) -> str:
    stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
    request = infer_request(model, {} if task is None else {"task": task}, **inputs)
    if is_stream:
        (answer,) = stub.ModelStreamInfer(iter([request]))
        return str(answer.error_message)
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    return str(caught.value.details())
