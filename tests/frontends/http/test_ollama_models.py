"""Adapters and images by Ollama's own client, unmodified, against a real server."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ollama
import pytest

from client.sync import Client
from client.types import Message
from tests.adapter_models import adapted_model
from tests.pictures import data_address, picture
from tests.serving import ServerProcess, server_process
from tests.vision_models import SAVE

PROMPT = "w7 w9 w11 w13"
IMAGE = picture()
GREEDY = {"temperature": 0, "num_predict": 8}
CAPTIONER = "captioner"


@pytest.fixture(scope="module")
def running(
    caption_bundles: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server of a model with the adapters ``one`` and ``two``, the same with ``latest``, and a
    model that writes texts about images.
    """
    root = tmp_path_factory.mktemp("ollama-models")
    model = adapted_model(root, "llama")
    model.write(root / "bundles", "plain")
    replace(model, adapters={"latest": model.adapters["one"]}).write(root / "bundles", "tagged")
    shutil.copytree(caption_bundles / CAPTIONER, root / "bundles" / CAPTIONER)
    with server_process(root / "bundles", "--threads", "1") as server:
        yield server


@pytest.fixture(scope="module")
def ollamas(running: ServerProcess) -> Iterator[ollama.Client]:
    with ollama.Client(host=running.http_url) as client:
        yield client


@pytest.fixture(scope="module")
def own(running: ServerProcess) -> Iterator[Client]:
    with Client(running.target, timeout_seconds=60) as client:
        yield client


def test_tags_are_adapters(ollamas: ollama.Client, own: Client) -> None:
    expected = {
        name: own.generate(name, PROMPT, max_new_tokens=8).outputs[0].text
        for name in ("plain", "plain:one", "plain:two", "tagged:latest")
    }
    assert len(set(expected.values())) == 3  # the adapters one and latest are the same
    names = {
        "plain": "plain",
        "plain:latest": "plain",
        "plain:one": "plain:one",
        "plain:two": "plain:two",
        "tagged": "plain",
        "tagged:latest": "plain:one",
    }
    for name, same in names.items():
        answer = ollamas.generate(name, PROMPT, options=GREEDY)
        assert (answer.model, answer.response) == (name, expected[same])
    with pytest.raises(ollama.ResponseError) as caught:
        ollamas.generate("plain:three", PROMPT)
    assert caught.value.status_code == 404


def test_lists_have_the_names_that_are_answered(ollamas: ollama.Client) -> None:
    listed = {model.model: model for model in ollamas.list().models}
    assert listed.keys() == {
        f"{CAPTIONER}:latest",
        *("plain:latest", "plain:one", "plain:two"),
        *("tagged", "tagged:latest"),
    }
    details = listed["plain:one"].details
    assert details is not None
    assert details.parent_model == "plain"
    assert listed["plain:one"].digest != listed["plain:latest"].digest
    running = {model.model: model.size for model in ollamas.ps().models}
    assert running.keys() == listed.keys()
    assert running["plain:one"] == running["plain:latest"] > 0  # type: ignore[operator]


def test_without_a_template_the_prompt_is_the_input(ollamas: ollama.Client) -> None:
    raw = ollamas.generate("plain", PROMPT, raw=True, options=GREEDY)
    assert raw.response == ollamas.generate("plain", PROMPT, options=GREEDY).response
    refused: dict[str, Any] = {"system": "w1", "think": True}
    for field, value in refused.items():
        with pytest.raises(ollama.ResponseError) as caught:
            ollamas.generate("plain", PROMPT, **{field: value})
        assert caught.value.error == f"{field}: 'plain' has no chat template"
    with pytest.raises(ollama.ResponseError) as caught:
        ollamas.chat("plain", [{"role": "user", "content": PROMPT}])
    assert caught.value.error == "messages: 'plain' has no chat template"
    assert ollamas.generate("plain", PROMPT, think=False, options=GREEDY).response == raw.response


def test_images_are_sources(ollamas: ollama.Client, own: Client) -> None:
    expected = own.generate(CAPTIONER, images=IMAGE, max_new_tokens=8).outputs[0].text
    assert ollamas.show(CAPTIONER).capabilities == ["completion", "vision"]
    whole = ollamas.generate(CAPTIONER, images=[IMAGE], options=GREEDY)
    assert whole.response == expected
    turn: Any = {"role": "user", "images": [IMAGE]}
    assert ollamas.chat(CAPTIONER, [turn], options=GREEDY).message.content == expected
    turn["images"] = [ollama.Image(value=data_address(IMAGE).partition(",")[2])]
    parts = ollamas.chat(CAPTIONER, [turn], options=GREEDY, stream=True)
    assert "".join(part.message.content or "" for part in parts) == expected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"images": [IMAGE], "prompt": "What?"}, f"prompt: '{CAPTIONER}' takes an image alone"),
        ({"images": [b"x"]}, "images[0]: "),
        ({"images": [IMAGE, b"x"]}, "prompt: 'captioner' takes one with one image"),
        ({"prompt": "What?"}, "prompt: 'captioner' takes images, not texts"),
        ({"images": [IMAGE], "raw": True}, "images: is not combined with raw"),
    ],
)
def test_errors_name_the_image(
    ollamas: ollama.Client, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        ollamas.generate(CAPTIONER, **fields)
    assert caught.value.error.startswith(message)


@pytest.mark.slow  # the models' export takes long
@pytest.mark.parametrize("name", SAVE)
def test_images_in_chats(vision_models: Path, name: str, tmp_path: Path) -> None:
    shutil.copytree(vision_models / "bundles" / name, tmp_path / name)
    with (
        server_process(tmp_path, "--threads", "1") as server,
        Client(server.target, timeout_seconds=60) as own,
        ollama.Client(host=server.http_url) as client,
    ):
        asked = Message("user", [IMAGE, picture(2), "What is it?"])
        expected = own.generate(name, messages=[asked], max_new_tokens=8)
        turn = {"role": "user", "content": "What is it?", "images": [IMAGE, picture(2)]}
        answer = client.chat(name, [turn], options=GREEDY)
        assert answer.message.content == expected.outputs[0].text
        assert answer.prompt_eval_count == expected.usage.input_tokens
        generated = client.generate(name, "What is it?", images=[IMAGE, picture(2)], options=GREEDY)
        assert generated.response == answer.message.content
        assert "vision" in (client.show(name).capabilities or ())
        with pytest.raises(ollama.ResponseError) as caught:
            client.chat(name, [turn, {**turn, "images": [IMAGE, b"x"]}])
        assert caught.value.error.startswith("messages[1].images[1]: ")
