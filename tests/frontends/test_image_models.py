"""Every call for texts, by every protocol, tells that a model takes images, not texts."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import grpc
import httpx2
import pytest
from starlette.routing import Route

from protos.inference import open_inference_pb2_grpc
from protos.triune.v1 import inference_pb2 as pb
from protos.triune.v1 import inference_pb2_grpc
from server.config import ServerConfig
from server.frontends.http.access import Access
from server.frontends.http.body import BodyBudget
from server.frontends.http.endpoint import Context
from server.frontends.http.protocols import PROTOCOLS
from server.frontends.http.settings import HttpSettings
from server.service.service import Service
from tests.frontends.every_call import (
    AUDIO,
    BODIES,
    CALLS,
    LANGUAGES,
    OTHERS,
    SENT_AS_STREAMS,
    STREAMS,
    TASKS,
    TEXTS,
    own_message,
    with_model,
)
from tests.pictures import encoded, picture
from tests.server.oip.messages import infer_request
from tests.serving import ServerProcess, server_process

CLASSIFIER, EMBEDDER, CAPTIONER = "vit", "vit-embed", "captioner"
pytestmark = pytest.mark.slow  # the models' export takes long

MODELS = (CLASSIFIER, EMBEDDER, CAPTIONER)


@pytest.fixture(scope="module")
def server(
    image_bundles: Path, caption_bundles: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("images")
    for root in (image_bundles, caption_bundles):
        shutil.copytree(root, folder, dirs_exist_ok=True)
    with server_process(folder, "--threads", "1") as running:
        yield running


@pytest.fixture(autouse=True)
def still_answers(http: httpx2.Client) -> Iterator[None]:
    yield
    body = {"model": EMBEDDER, "input": {"image": encoded(picture())}}
    assert http.post("/v1/embeddings", json=body).status_code == 200


def test_the_calls_below_are_all(tmp_path: Path) -> None:
    service = pb.DESCRIPTOR.services_by_name["InferenceService"]
    assert set(CALLS) == {method.name for method in service.methods}
    config = ServerConfig(bundles=tmp_path, tei_model="")
    handlers: Any = Service  # makes routes, which are not called
    context = Context(handlers, HttpSettings.of(config), Access(config), BodyBudget(0))
    routes = [cast("Route", route) for protocol in PROTOCOLS for route in protocol(context)]
    posts = {route.path for route in routes if "POST" in (route.methods or ())}
    assert posts == {*BODIES, *AUDIO, *LANGUAGES, *OTHERS}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("path", BODIES)
def test_texts_are_refused_by_http(http: httpx2.Client, path: str, model: str) -> None:
    body = BODIES[path] if "{model}" in path else {"model": model, **BODIES[path]}
    answer = http.post(path.replace("{model}", model).replace("{version}", "1"), json=body)
    assert answer.status_code in (400, 413, 424), answer.text
    assert ("image_input" if "/v2/models" in path else "images") in own_message(path, answer)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("path", AUDIO)
def test_speech_is_refused_by_http(http: httpx2.Client, path: str, model: str) -> None:
    answer = http.post(path, data={"model": model}, files={"file": ("a.wav", b"RIFF")})
    assert answer.status_code == 400
    assert "images" in own_message(path, answer)


@pytest.mark.parametrize("path", STREAMS)
def test_texts_are_refused_before_a_stream_begins(http: httpx2.Client, path: str) -> None:
    answer = http.post(path, json={"model": CLASSIFIER, "stream": True, **BODIES[path]})
    assert answer.status_code == 400
    assert "images" in own_message(path, answer)


@pytest.mark.parametrize("path", LANGUAGES)
def test_models_of_images_have_no_languages(http: httpx2.Client, path: str) -> None:
    answer = http.post(path, json=LANGUAGES[path])
    assert answer.status_code == 400
    assert "no translation model is served" in own_message(path, answer)
    assert http.get("/languages").json() == []


@pytest.mark.parametrize("model", MODELS)
def test_descriptions_of_text_embeddings_inference(http: httpx2.Client, model: str) -> None:
    assert http.get(f"/{model}/health").status_code == 200
    answer = http.get(f"/{model}/info")
    assert answer.status_code == 200
    assert answer.json()["model_id"] == model


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", CALLS)
def test_texts_are_refused_by_grpc(channel: grpc.Channel, name: str, model: str) -> None:
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    request = with_model(CALLS[name], model)
    messages = iter([request]) if name in SENT_AS_STREAMS else request
    with pytest.raises(grpc.RpcError) as caught:
        list(getattr(stub, name)(messages))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "images" in str(caught.value.details())


@pytest.mark.parametrize("is_stream", [False, True], ids=["ModelInfer", "ModelStreamInfer"])
@pytest.mark.parametrize("task", [None, *TASKS])
def test_texts_are_refused_by_the_open_inference_protocol(
    channel: grpc.Channel, task: str | None, is_stream: bool
) -> None:
    stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
    request = infer_request(CLASSIFIER, {} if task is None else {"task": task}, text_input=TEXTS)
    if is_stream:
        (answer,) = stub.ModelStreamInfer(iter([request]))
        message = answer.error_message
    else:
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(request)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        message = str(caught.value.details())
    is_own = task in (None, "classify")
    expected = "text_input: is not an input of classify: image_input"
    if not is_own:
        expected = f"parameters.task: '{task}' is not a task of 'vit': classify"
    assert message == expected
