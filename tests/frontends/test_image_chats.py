"""Images in chats, over gRPC, HTTP and the command line: the answers are those of transformers."""

import io
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anthropic
import grpc
import httpx2
import openai
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor
from typer.testing import CliRunner

from client.cli import app
from client.errors import TriuneError
from client.sync import Client
from client.types import Message
from tests.pictures import black, data_address, encoded, picture
from tests.server.chat_models import chat_bundles
from tests.serving import ServerProcess, server_process
from tests.vision_models import IMAGE, SAVE, tokenizer

pytestmark = pytest.mark.slow  # the models' export takes long

NUM_NEW = 24
QUESTION = "What is it?"
NAMES = tuple(SAVE)


@pytest.fixture(scope="module")
def server(
    vision_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Also serves ``chat``, which reads texts only."""
    folder = tmp_path_factory.mktemp("server")
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    bundles = chat_bundles(folder, tokenizer().backend_tokenizer, template, 64)
    (bundles / "model").rename(bundles / "chat")
    manifest = bundles / "chat" / "1" / "bundle.json"
    manifest.write_text(manifest.read_text().replace('"name": "model"', '"name": "chat"'))
    for name in NAMES:
        shutil.copytree(vision_models / "bundles" / name, bundles / name)
    with server_process(bundles, "--threads", "1") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.target) as connected_client:
        yield connected_client


class Reference:
    """A model of ``transformers`` and its processor."""

    def __init__(self, folder: Path) -> None:
        self.processor = AutoProcessor.from_pretrained(folder)
        self.model = AutoModelForImageTextToText.from_pretrained(folder).eval()

    def answer(self, messages: Sequence[Message]) -> tuple[str, int]:
        """The greedy answer, and the number of tokens of the prompt."""
        turns, pictures = [], []
        for message in messages:
            parts = [message.content] if isinstance(message.content, str) else message.content
            content: list[dict[str, str]] = []
            for part in parts:
                if isinstance(part, bytes):
                    pictures.append(Image.open(io.BytesIO(part)).convert("RGB"))
                    content.append({"type": "image"})
                else:
                    content.append({"type": "text", "text": part})
            turns.append({"role": message.role, "content": content})
        prompt = self.processor.apply_chat_template(turns, add_generation_prompt=True)
        inputs = self.processor(text=prompt, images=pictures or None, return_tensors="pt")
        with torch.no_grad():
            ids = self.model.generate(**inputs, max_new_tokens=NUM_NEW, do_sample=False)
        size = inputs["input_ids"].shape[1]
        return self.processor.tokenizer.decode(ids[0, size:], skip_special_tokens=True), size


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def reference(vision_models: Path, name: str) -> Reference:
    return Reference(vision_models / "sources" / name)


CONVERSATIONS: dict[str, list[Message]] = {
    "text": [Message("user", QUESTION)],
    "image": [Message("user", [picture(1), QUESTION])],
    "image last": [Message("user", [QUESTION, picture(1)])],
    "two images": [Message("user", [picture(1), "And ", picture(2, size=(70, 20)), QUESTION])],
    "turns": [
        Message("system", "Short."),
        Message("user", [picture(3, "JPEG"), QUESTION]),
        Message("assistant", "A dog."),
        Message("user", "Which colour?"),
        Message("assistant", ""),
        Message("user", [picture(4, size=(24, 24)), "And here?"]),
    ],
}


@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_answers_are_those_of_transformers(
    client: Client, name: str, reference: Reference, messages: list[Message]
) -> None:
    text, size = reference.answer(messages)
    answer = client.generate(name, messages=messages, max_new_tokens=NUM_NEW)
    assert answer.outputs[0].text == text
    assert answer.usage.input_tokens == size
    pieces = client.generate_stream(name, messages=messages, max_new_tokens=NUM_NEW)
    assert "".join(piece.text for piece in pieces) == text


def test_a_second_turn_reuses_the_image(client: Client, name: str, reference: Reference) -> None:
    messages = [Message("user", [picture(11), "A question of more than a few letters, " * 2])]
    first = client.generate(name, messages=messages, max_new_tokens=NUM_NEW)
    messages += [Message("assistant", first.outputs[0].text), Message("user", QUESTION)]
    second = client.generate(name, messages=messages, max_new_tokens=NUM_NEW)
    assert second.usage.reused_tokens >= first.usage.input_tokens - 1
    assert second.outputs[0].text == reference.answer(messages)[0]
    other = [Message("user", [picture(12), *messages[0].content[1:]]), *messages[1:]]
    third = client.generate(name, messages=other, max_new_tokens=NUM_NEW)
    assert third.usage.reused_tokens == 0
    assert third.outputs[0].text == reference.answer(other)[0]


def openai_content(message: Message) -> Any:
    if isinstance(message.content, str):
        return message.content
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_address(part), "detail": "low"}}
        for part in message.content
    ]


@pytest.fixture
def openai_client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.http_url}/v1", api_key="-", max_retries=0)


@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_chat_completions(
    openai_client: openai.OpenAI, name: str, reference: Reference, messages: list[Message]
) -> None:
    text, size = reference.answer(messages)
    turns: Any = [{"role": each.role, "content": openai_content(each)} for each in messages]
    answer = openai_client.chat.completions.create(
        model=name, messages=turns, max_tokens=NUM_NEW, temperature=0
    )
    assert answer.choices[0].message.content == text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == size
    stream = openai_client.chat.completions.create(
        model=name, messages=turns, max_tokens=NUM_NEW, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text


def test_responses(openai_client: openai.OpenAI, name: str, reference: Reference) -> None:
    text, size = reference.answer(CONVERSATIONS["image"])
    content: Any = [
        {"type": "input_image", "image_url": data_address(picture(1)), "detail": "auto"},
        {"type": "input_text", "text": QUESTION},
    ]
    answer = openai_client.responses.create(
        model=name,
        input=[{"role": "user", "content": content}],
        max_output_tokens=NUM_NEW,
        temperature=0,
    )
    assert answer.output_text == text
    assert answer.usage is not None
    assert answer.usage.input_tokens == size


def anthropic_content(message: Message) -> Any:
    if isinstance(message.content, str):
        return message.content
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": encoded(part)},
        }
        for part in message.content
    ]


@pytest.fixture
def anthropic_client(server: ServerProcess) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.http_url, api_key="-", max_retries=0)


@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_anthropics_messages(
    anthropic_client: anthropic.Anthropic,
    name: str,
    reference: Reference,
    messages: list[Message],
) -> None:
    text, size = reference.answer(messages)
    turns: Any = [{"role": each.role, "content": anthropic_content(each)} for each in messages]
    given: Any = {"model": name, "messages": turns}
    assert anthropic_client.messages.count_tokens(**given).input_tokens == size
    given |= {"max_tokens": NUM_NEW, "extra_body": {"temperature": 0}}
    answer = anthropic_client.messages.create(**given)
    assert answer.content[0].text == text
    with anthropic_client.messages.stream(**given) as stream:
        assert "".join(stream.text_stream) == text


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ({"data": encoded(picture(1)[:60])}, "messages[0].content[1].source.data"),
        ({"data": "?"}, "messages[0].content[1].source.data"),
        ({"type": "url", "url": "https://a/b.png"}, "messages[0].content[1].source.type"),
    ],
)
def test_bad_images_of_anthropics_messages(
    anthropic_client: anthropic.Anthropic, name: str, block: dict[str, Any], field: str
) -> None:
    image = {"type": "image", "source": {"type": "base64", **block}}
    content: Any = [{"type": "text", "text": QUESTION}, image]
    with pytest.raises(anthropic.BadRequestError, match=re.escape(f"{field}: ")):
        anthropic_client.messages.create(
            model=name,
            max_tokens=2,
            system="Short.",
            messages=[{"role": "user", "content": content}],
        )


@pytest.mark.parametrize(("text", "stdin"), [(QUESTION, ""), ("-", f"{QUESTION}\n")])
def test_command_line(
    server: ServerProcess, name: str, reference: Reference, tmp_path: Path, text: str, stdin: str
) -> None:
    (tmp_path / "picture.png").write_bytes(picture(1))
    options = ["--model", name, "--max-new-tokens", str(NUM_NEW), "--image"]
    command = ["--server", server.target, "generate", text, *options]
    result = CliRunner().invoke(app, [*command, str(tmp_path / "picture.png")], input=stdin)
    assert result.exit_code == 0, result.output
    assert result.output.strip() == reference.answer(CONVERSATIONS["image"])[0].strip()


def test_models_describe_images(client: Client, name: str) -> None:
    image = client.get_model(name).image
    assert image is not None
    assert image.num_channels == 3


def test_models_of_texts_refuse_images(client: Client) -> None:
    messages = [Message("user", ["a", picture(1)])]
    with pytest.raises(TriuneError) as caught:
        client.generate("chat", messages=messages, max_new_tokens=2)
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT
    assert "messages[0].parts[1].image: 'chat' reads no images" in caught.value.message
    texts = [Message("user", ["ab", "c"])]
    joined = [Message("user", "abc")]
    answers = [
        client.generate("chat", messages=each, max_new_tokens=8, token_ids=True)
        for each in (texts, joined)
    ]
    assert answers[0].outputs[0].token_ids == answers[1].outputs[0].token_ids


BAD: dict[str, tuple[list[str | bytes], str]] = {
    "damaged": ([QUESTION, picture(1)[:60]], "messages[0].parts[1].image"),
    "no image": ([b"GIF?"], "messages[0].parts[0].image"),
    "too many pixels": ([black(6000)], "messages[0].parts[0].image"),
    "too many tokens": ([picture(1)] * 120, "messages"),
    "placeholder": ([picture(1), f"x{IMAGE}"], "messages[0].parts[1].text"),
}


@pytest.mark.parametrize(("content", "field"), BAD.values(), ids=BAD.keys())
def test_bad_images_are_refused(
    client: Client, name: str, content: list[str | bytes], field: str
) -> None:
    with pytest.raises(TriuneError) as caught:
        client.generate(name, messages=[Message("user", content)], max_new_tokens=2)
    assert f"{field}: " in str(caught.value)
    # Nothing stays reserved, and the server goes on.
    assert client.generate(name, messages=CONVERSATIONS["image"], max_new_tokens=2).outputs


def test_reasoning_has_no_placeholder_beside_an_image(client: Client, name: str) -> None:
    turns = [Message("user", [picture(1)]), Message("assistant", "A", reasoning=IMAGE)]
    with pytest.raises(TriuneError) as caught:
        client.generate(name, messages=turns, max_new_tokens=2)
    assert "messages[1].reasoning: " in str(caught.value)


def test_the_placeholder_alone_is_a_text(client: Client, name: str) -> None:
    """Without images, it stands for none."""
    answer = client.generate(name, messages=[Message("user", IMAGE)], max_new_tokens=2)
    assert answer.outputs[0].token_ids == ()


@pytest.mark.parametrize(
    ("part", "field", "reason"),
    [
        ({"type": "image_url"}, "[0].image_url", "is required"),
        ({"type": "image_url", "image_url": {"url": "https://a/b.png"}}, "[0].image_url", "none"),
        ({"type": "image_url", "image_url": {"url": "data:image/png,AA"}}, "[0].image_url", "base"),
        ({"type": "image_url", "image_url": {"url": "AAAA"}}, "[0].image_url", "is not one of"),
        ({"type": "input_audio"}, "[0].type", "'input_audio' is not supported"),
    ],
)
def test_bad_parts_are_refused(
    http: httpx2.Client, name: str, part: dict[str, Any], field: str, reason: str
) -> None:
    body = {"model": name, "messages": [{"role": "user", "content": [part]}]}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == f"messages[0].content{field}"
    assert reason in error["message"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"instructions": f"x{IMAGE}"}, "instructions"),
        ({"instructions": "Short."}, "input[0].content[0].image_url"),
    ],
)
def test_instructions_do_not_move_the_input(
    http: httpx2.Client, name: str, fields: dict[str, str], field: str
) -> None:
    image = picture(1) if field == "instructions" else picture(1)[:60]
    content = [{"type": "input_image", "image_url": data_address(image)}]
    body = {"model": name, "input": [{"role": "user", "content": content}], **fields}
    answer = http.post("/v1/responses", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field
