"""What is refused of Ollama's API: errors name the field, in Ollama's shape."""

from typing import Any

import httpx2
import ollama
import pytest

from server.frontends.http.json_size import MAX_VALUES
from tests.frontends.conftest import DECODER, EMBEDDER, TRANSLATOR

PROMPT = "7,8,"
ASK: list[Any] = [{"role": "user", "content": PROMPT}]
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a temperature": ({"options": {"temperature": -1}}, "options.temperature: "),
    "a text for a number": ({"options": {"top_k": "many"}}, "options.top_k: "),
    "an unknown option": ({"options": {"num_cxt": 1}}, "options.num_cxt: is not supported"),
    "mirostat": ({"options": {"mirostat": 2}}, "options.mirostat: is not supported"),
    "a window of penalties": (
        {"options": {"repeat_penalty": 1.1, "repeat_last_n": 64}},
        "options.repeat_last_n: is not supported",
    ),
    "no tokens": ({"options": {"num_predict": 0}}, "options.num_predict: "),
    "a negative seed": ({"options": {"seed": -7}}, "options.seed: "),
    "an empty stop string": ({"options": {"stop": [""]}}, "options.stop[0]: "),
    "another option of the service": ({"options": {"beam_size": 65}}, "options.beam_size: "),
    "a format": ({"format": "xml"}, "format: 'xml' is neither json nor a JSON schema"),
    "a schema": ({"format": {"type": 1}}, "format: "),
    "thinking": ({"think": True}, f"think: '{DECODER}' does not think"),
    "a level": ({"think": "high"}, f"think: '{DECODER}' does not think"),
    "many likely tokens": ({"logprobs": True, "top_logprobs": 101}, "top_logprobs: "),
    "truncation": ({"truncate": True}, "truncate: is not supported"),
    "a shift": ({"shift": True}, "shift: is not supported"),
    "a suffix": ({"suffix": "x"}, "suffix: is not supported"),
    "a template": ({"template": "{{ .Prompt }}"}, "template: is not supported"),
    "a context": ({"context": [1, 2]}, "context: is not supported"),
    "a picture to make": ({"width": 512}, "width: is not supported"),
    "raw with a system prompt": ({"raw": True, "system": "x"}, "system: is not combined with raw"),
    "an image": ({"images": ["eA=="]}, f"images[0]: '{DECODER}' reads no images"),
    "base64": ({"images": ["!"]}, "images[0]: is not base64"),
    "a long prompt": ({"prompt": "7," * 2000}, "prompt: "),
    "a long raw prompt": ({"prompt": "7," * 2000, "raw": True}, "prompt: "),
    "a prompt of another type": ({"prompt": 7}, "prompt: expected str"),
    "another task": ({"model": TRANSLATOR}, f"model: '{TRANSLATOR}' does not answer Generate"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_errors_name_the_field(http: httpx2.Client, name: str, stream: bool) -> None:
    fields, message = REFUSED[name]
    body = {"model": DECODER, "prompt": PROMPT, "stream": stream, **fields}
    answer = http.post("/api/generate", json=body)
    assert (answer.status_code, [*answer.json()]) == (400, ["error"]), answer.text
    assert answer.json()["error"].startswith(message)


REFUSED_CHATS: dict[str, tuple[dict[str, Any], str]] = {
    "a role": ({"messages": [{"role": "judge", "content": "x"}]}, "messages[0].role: "),
    "parts": ({"messages": [{"role": "user", "content": []}]}, "messages[0].content: "),
    "an unknown field": (
        {"messages": [{"role": "user", "content": "x", "audio": 1}]},
        "messages[0].audio: is not supported",
    ),
    "no content": ({"messages": [{"role": "user"}]}, "messages[0].content: is empty"),
    "an image": (
        {"messages": [*ASK, {"role": "user", "content": "x", "images": ["eA=="]}]},
        f"messages[1].images[0]: '{DECODER}' reads no images",
    ),
    "an address of an image": (
        {"messages": [{"role": "user", "images": ["https://a.example/b.png"]}]},
        "messages[0].images[0]: is an address",
    ),
    "too many images": (
        {"messages": [{"role": "user", "images": ["eA=="] * 257}]},
        "messages[0].images: 257 given",
    ),
    "too many images together": (
        {"messages": [{"role": "user", "images": ["eA=="] * 129}] * 2},
        "messages: 258 given",
    ),
    "tools": (
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        "tools: are not described by this model's chat template",
    ),
    "a long conversation": ({"messages": [{"role": "user", "content": "7," * 2000}]}, "messages"),
    "too many messages": ({"messages": ASK * 1025}, "messages: 1025 given, at most 1024"),
    "too many values": ({"messages": [{}] * (MAX_VALUES + 1)}, "body: has more than"),
}


@pytest.mark.parametrize("name", REFUSED_CHATS)
def test_errors_of_chats_name_the_field(http: httpx2.Client, name: str) -> None:
    fields, message = REFUSED_CHATS[name]
    answer = http.post("/api/chat", json={"model": DECODER, "messages": ASK, **fields})
    assert (answer.status_code, [*answer.json()]) == (400, ["error"]), answer.text
    assert answer.json()["error"].startswith(message)


def test_errors_of_embeddings(http: httpx2.Client) -> None:
    for fields, message in (
        ({"dimensions": 10**6}, "dimensions: "),
        ({"options": {"mirostat": 1}}, "options.mirostat: is not supported"),
        ({"input": [["a"]]}, "input[0]: expected str"),
        ({"input": ["a"] * 4097}, "input: 4097 given, at most 4096"),
        ({"model": DECODER}, f"model: '{DECODER}' does not answer Embed"),
    ):
        answer = http.post("/api/embed", json={"model": EMBEDDER, "input": "a", **fields})
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(message)


def test_models_are_not_changed(ollamas: ollama.Client, http: httpx2.Client) -> None:
    calls: list[Any] = [
        lambda: ollamas.pull("llama3.2"),
        lambda: list(ollamas.pull("llama3.2", stream=True)),
        lambda: ollamas.push("llama3.2"),
        lambda: ollamas.create("mine", from_=DECODER),
        lambda: ollamas.copy(DECODER, "mine"),
        lambda: ollamas.delete(DECODER),
    ]
    for call in calls:
        with pytest.raises(ollama.ResponseError) as caught:
            call()
        assert caught.value.status_code == 501
        assert caught.value.error.startswith("models are bundles")
    assert http.post("/api/blobs/sha256:00", content=b"x").status_code == 501
    assert http.get("/api/nothing").json() == {"error": "there is nothing at /api/nothing"}
    assert http.get("/api/chat").json() == {"error": "this address does not answer GET"}
    assert f"{DECODER}:latest" in [model.model for model in ollamas.list().models]


def test_an_unknown_model(ollamas: ollama.Client) -> None:
    calls: list[Any] = [
        lambda: ollamas.generate("nothing", PROMPT),
        lambda: ollamas.generate("nothing"),
        lambda: list(ollamas.chat("nothing", ASK, stream=True)),
        lambda: ollamas.embed("nothing", "a"),
        lambda: ollamas.embeddings("nothing", "a"),
        lambda: ollamas.show("nothing"),
    ]
    for call in calls:
        with pytest.raises(ollama.ResponseError) as caught:
            call()
        assert caught.value.status_code == 404
        assert caught.value.error.startswith("model 'nothing' is not served here")
