"""Conversations of one image with a model that writes texts about images."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from client.sync import Client
from tests.pictures import black, data_address, picture
from tests.serving import ServerProcess, server_process

MODEL, OF_TEXTS = "captioner", "tiny-decoder"
IMAGE = picture()
TEXT = {"type": "text", "text": "What is it?"}


def part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "auto"}}


def user(*content: dict[str, Any]) -> list[Any]:
    return [{"role": "user", "content": list(content)}]


@pytest.fixture(scope="module")
def server(
    caption_bundles: Path, tiny_bundles: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("chat")
    shutil.copytree(caption_bundles / MODEL, folder / MODEL)
    shutil.copytree(tiny_bundles / OF_TEXTS, folder / OF_TEXTS)
    with server_process(folder, "--threads", "1") as running:
        yield running


@pytest.fixture(scope="module")
def openai(server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.http_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_chat_has_the_text_of_our_own_call(server: ServerProcess, openai: OpenAI) -> None:
    with Client(server.target, timeout_seconds=60) as own:
        expected = own.generate(MODEL, images=IMAGE, max_new_tokens=8).outputs[0]
    messages = user(part(data_address(IMAGE)))
    options: dict[str, Any] = {"max_tokens": 8, "temperature": 0}
    whole = openai.chat.completions.create(model=MODEL, messages=messages, **options)
    assert whole.choices[0].message.content == expected.text
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == expected.usage.input_tokens
    parts = openai.chat.completions.create(model=MODEL, messages=messages, stream=True, **options)
    deltas = [chunk.choices[0].delta.content or "" for chunk in parts]
    assert "".join(deltas) == expected.text


PATH = "messages[0].content[0].image_url"
REFUSED: dict[str, tuple[str, list[Any], str]] = {
    "a text": (MODEL, [{"role": "user", "content": "Hello"}], "takes images, not texts"),
    "a text beside it": (
        MODEL,
        user(part(data_address(IMAGE)), TEXT),
        "messages[0].content[1].text: 'captioner' takes an image alone",
    ),
    "two images": (
        MODEL,
        user(part(data_address(IMAGE)), part(data_address(IMAGE))),
        "messages: 'captioner' takes one with one image",
    ),
    "two messages": (
        MODEL,
        [{"role": "system", "content": "Be brief."}, *user(part(data_address(IMAGE)))],
        "messages: 'captioner' takes one with one image",
    ),
    "an address": (
        MODEL,
        user(part("https://a.example/b.png")),
        f"{PATH}: is an address (https:)",
    ),
    "a damaged image": (
        MODEL,
        user(part(data_address(IMAGE[:80]))),
        f"{PATH}: the image is damaged",
    ),
    "too many pixels": (
        MODEL,
        user(part(data_address(black(6_000)))),
        f"{PATH}: has 36000000 pixels",
    ),
    "a model of texts": (
        OF_TEXTS,
        user(part(data_address(IMAGE))),
        "messages: 'tiny-decoder' has no chat template",
    ),
}


@pytest.mark.parametrize(("model", "messages", "message"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_name_the_part(
    openai: OpenAI, model: str, messages: list[Any], message: str, stream: bool
) -> None:
    with pytest.raises(BadRequestError) as caught:
        openai.chat.completions.create(model=model, messages=messages, stream=stream)
    assert message in str(caught.value)
