"""Images in the bodies of OpenAI's, Jina's and vLLM's routes, against the same calls by gRPC."""

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from client.sync import Client
from server.bounds import MAX_IMAGE_BYTES, MAX_IMAGES
from tests.frontends.conftest import EMBEDDER as TEXT_EMBEDDER
from tests.image_models import IMAGE
from tests.pictures import data_address, encoded, picture
from tests.serving import ServerProcess, server_process

CLASSIFIER, EMBEDDER, READER = "vit", "vit-embed", "vilbert"
FILES = [picture(0), picture(1, "JPEG"), picture(2, "WEBP")]
PATHS = {"/v1/embeddings": EMBEDDER, "/classify": CLASSIFIER}


def message(*parts: Any, role: str = "user") -> list[dict[str, Any]]:
    return [{"role": role, "content": list(parts)}]


def image_part(address: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": address, "detail": "auto"}}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


HELLO, IMAGE_PART = text_part("HELLO"), image_part(data_address(FILES[0]))


@pytest.fixture(scope="module")
def server(
    image_bundles: Path, head_bundles: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("images")
    for name in (CLASSIFIER, EMBEDDER, READER):
        shutil.copytree(image_bundles / name, folder / name)
    shutil.copytree(head_bundles / TEXT_EMBEDDER, folder / TEXT_EMBEDDER)
    with server_process(folder, "--threads", "1") as running:
        yield running


@pytest.fixture(scope="module")
def ours(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target, timeout_seconds=60) as client:
        yield client


def data_of(answer: httpx2.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def refusal(http: httpx2.Client, path: str, body: dict[str, Any]) -> tuple[str, str]:
    """The field and the message of an error; checks that a good request is answered after it."""
    answer = http.post(path, json={"model": PATHS[path], **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    good = {"model": PATHS[path], "input": {"image": encoded(FILES[0])}}
    assert len(data_of(http.post(path, json=good))) == 1
    return error["param"], error["message"]


def test_images_are_embedded_as_by_grpc(http: httpx2.Client, ours: Client) -> None:
    items = [{"image": encoded(FILES[0])}, {"image": data_address(FILES[1], "image/jpeg")}]
    answer = http.post("/v1/embeddings", json={"model": EMBEDDER, "input": items})
    vectors = [item["embedding"] for item in data_of(answer)]
    expected = ours.embed(EMBEDDER, FILES[:2])
    assert np.allclose(vectors, [output.values for output in expected.outputs], atol=1e-6)
    assert not np.allclose(vectors[0], vectors[1], atol=1e-3)
    assert (
        answer.json()["usage"]["prompt_tokens"]
        == expected.usage.input_tokens
        == 2 * IMAGE.num_tokens
    )
    packed = {"model": EMBEDDER, "input": items[0], "encoding_format": "base64", "dimensions": None}
    (item,) = data_of(http.post("/v1/embeddings", json=packed))
    assert np.allclose(np.frombuffer(base64.b64decode(item["embedding"]), "<f4"), vectors[0])


def test_images_are_classified_as_by_grpc(http: httpx2.Client, ours: Client) -> None:
    items = [{"image": encoded(data)} for data in FILES]
    data = data_of(http.post("/classify", json={"model": CLASSIFIER, "input": items}))
    labels = ours.get_model(CLASSIFIER).labels
    for item, output in zip(data, ours.classify(CLASSIFIER, FILES).outputs, strict=True):
        scores = {label.label: label.score for label in output.labels}
        assert item["probs"] == pytest.approx([scores[label] for label in labels], rel=1e-5)
        assert item["label"] == output.labels[0].label


@pytest.mark.parametrize(("path", "model"), PATHS.items(), ids=list(PATHS))
def test_a_message_with_an_image_is_the_image(http: httpx2.Client, path: str, model: str) -> None:
    body = {"model": model, "input": {"image": encoded(FILES[0])}}
    given = {"model": model, "messages": message(image_part(data_address(FILES[0])))}
    one, other = (data_of(http.post(path, json=each)) for each in (body, given))
    assert one == other


def test_a_message_with_a_text_and_an_image_is_classified_as_both(
    http: httpx2.Client, ours: Client
) -> None:
    body = {"model": READER, "messages": message(HELLO, IMAGE_PART)}
    (item,) = data_of(http.post("/classify", json=body))
    (output,) = ours.classify(READER, pairs=[("HELLO", FILES[0])]).outputs
    scores = {label.label: label.score for label in output.labels}
    assert item["probs"] == pytest.approx([scores[label] for label in "abc"], rel=1e-5)


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"input": "HELLO"}, "input", "takes an image with each text"),
        ({"input": {"image": encoded(FILES[0])}}, "input", "takes a text with each image"),
        ({"messages": message(IMAGE_PART)}, "messages[0].content", "a text with each image"),
        ({"messages": message(IMAGE_PART, text_part(""))}, "messages[0].content[1].text", "empty"),
    ],
    ids=["a text", "an image", "a message with an image", "an empty text"],
)
def test_what_a_model_of_both_lacks_is_named(
    http: httpx2.Client, fields: dict[str, Any], field: str, reason: str
) -> None:
    answer = http.post("/classify", json={"model": READER, **fields})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == field
    assert reason in error["message"]


def test_long_base64_is_decoded_whole(http: httpx2.Client, ours: Client) -> None:
    """More than a piece, with a rest that is no whole number of bytes."""
    data = picture(0, "BMP", (200, 333))
    answer = http.post(
        "/v1/embeddings", json={"model": EMBEDDER, "input": {"image": encoded(data)}}
    )
    (item,) = data_of(answer)
    assert np.allclose(item["embedding"], ours.embed(EMBEDDER, data).outputs[0].values, atol=1e-6)


LONG = encoded(bytes(100_000))
BODIES: dict[str, tuple[dict[str, Any], str, str]] = {
    "https": ({"input": {"image": "https://a.example/b.png"}}, "input.image", "(https:)"),
    "http": ({"input": [{"image": "HTTP://a.example"}]}, "input[0].image", "(HTTP:)"),
    "file": ({"input": [{"image": "file:///etc/passwd"}]}, "input[0].image", "(file:)"),
    "address in a message": (
        {"messages": message(image_part("https://a.example/b.png"))},
        "messages[0].content[0].image_url.url",
        "the server fetches none",
    ),
    "not base64": ({"input": [{"image": "a cat!"}]}, "input[0].image", "is not base64"),
    "padding inside": (
        {"input": {"image": LONG[: (1 << 16) - 4] + "AA==" + LONG[1 << 16 :]}},
        "input.image",
        "is not base64",
    ),
    "no padding": ({"input": {"image": LONG.rstrip("=")}}, "input.image", "is not base64"),
    "not ascii": ({"input": {"image": "é" * 8}}, "input.image", "is not base64"),
    "data: without base64": (
        {"input": {"image": "data:image/svg+xml,<svg/>"}},
        "input.image",
        "without base64",
    ),
    "data: without data": ({"input": {"image": "data:image/png"}}, "input.image", "without base64"),
    "a text and an image": (
        {"input": ["a cat", {"image": encoded(FILES[0])}]},
        "input[1]",
        "another type",
    ),
    "an image and a text": (
        {"input": [{"image": encoded(FILES[0])}, "a cat"]},
        "input[1]",
        "another type",
    ),
    "another object": ({"input": {"text": "a cat"}}, "input.text", "is not supported"),
    "neither input nor messages": ({}, "input", "is required"),
    "both": ({"input": "a", "messages": []}, "messages", "combined"),
    "no message": ({"messages": []}, "messages", "0 given"),
    "a text as a message": (
        {"messages": [{"role": "user", "content": "a"}]},
        "messages[0].content",
        "has no image",
    ),
    "a message of texts": ({"messages": message(HELLO)}, "messages[0].content", "has no image"),
    "a text beside the image": (
        {"messages": message(IMAGE_PART, HELLO)},
        "messages[0].content[1].text",
        "does not apply to images",
    ),
    "two images in a message": (
        {"messages": message(IMAGE_PART, IMAGE_PART)},
        "messages[0].content[1]",
        "another image_url",
    ),
    "sound": (
        {"messages": message({"type": "input_audio"})},
        "messages[0].content[0].type",
        "'input_audio'",
    ),
    "a part without an image": (
        {"messages": message({"type": "image_url"})},
        "messages[0].content[0].image_url",
        "is required",
    ),
    "a message of the system": (
        {"messages": message(image_part(""), role="system")},
        "messages[0].role",
        "'system'",
    ),
    "too many": ({"input": [{"image": ""}] * (MAX_IMAGES + 1)}, "input", f"at most {MAX_IMAGES}"),
    "too large": (
        {"input": [{"image": ""}, {"image": "!" * (MAX_IMAGE_BYTES // 3 * 4 + 8)}]},
        "input[1].image",
        f"more than {MAX_IMAGE_BYTES} bytes",
    ),
    "a byte too large": (
        {"input": {"image": encoded(bytes(MAX_IMAGE_BYTES + 1))}},
        "input.image",
        f"more than {MAX_IMAGE_BYTES} bytes",
    ),
    "an empty file": ({"input": [{"image": ""}]}, "input[0].image", "is not one of PNG"),
    "an option of texts": (
        {"input": {"image": encoded(FILES[0])}, "truncate_prompt_tokens": 8},
        "truncate_prompt_tokens",
        "does not apply to images",
    ),
    "a text": ({"input": "a cat"}, "input", "takes images, not texts"),
}


@pytest.mark.parametrize("path", list(PATHS))
@pytest.mark.parametrize(("body", "field", "reason"), BODIES.values(), ids=BODIES)
def test_errors_name_the_field(
    http: httpx2.Client, path: str, body: dict[str, Any], field: str, reason: str
) -> None:
    param, text = refusal(http, path, body)
    assert param == field
    assert text.startswith(f"{field}: ")
    assert reason in text


def test_models_tell_what_images_they_take(http: httpx2.Client) -> None:
    found = {each["id"]: each.get("image") for each in data_of(http.get("/v1/models"))}
    image = {"height": IMAGE.height, "width": IMAGE.width, "num_channels": 3, "with_text": False}
    assert found == {
        CLASSIFIER: image,
        EMBEDDER: image,
        READER: {**image, "with_text": True},
        TEXT_EMBEDDER: None,
    }
    assert http.get(f"/v1/models/{CLASSIFIER}").json()["image"] == image


def test_a_model_of_texts_takes_no_images(http: httpx2.Client) -> None:
    body = {"model": TEXT_EMBEDDER, "input": [{"image": encoded(FILES[0])}]}
    answer = http.post("/v1/embeddings", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "input: 'embedder' takes texts, not images"


def test_bodies_over_the_limit_are_refused(http: httpx2.Client) -> None:
    items = [{"image": encoded(bytes(MAX_IMAGE_BYTES - 3))}] * 3
    answer = http.post("/v1/embeddings", json={"model": EMBEDDER, "input": items})
    assert answer.status_code == 413
