"""``suffix``: the middle of a text, by every protocol that has it."""

from collections.abc import Iterator

import httpx2
import ollama
import openai
import pytest

from client.sync import Client
from tests.server.chat_models import chat_bundles
from tests.server.test_grammar import byte_level
from tests.serving import ServerProcess, server_process

MODEL = "model"
BEFORE, AFTER = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))\n"
# What the suffix stands for, as a client that knows the model's tokens writes it.
PROMPT = f"<|fim_prefix|>{BEFORE}<|fim_suffix|>{AFTER}<|fim_middle|>"
NUM_NEW = 12


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"])
    template = "{{ messages[0].content }}"
    bundles = chat_bundles(tmp_path_factory.mktemp("code"), tokenizer, template, 512)
    with server_process(bundles, "--threads", "1") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.http_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def _completion(client: openai.OpenAI, prompt: str, suffix: str | None = None) -> tuple[str, int]:
    """The greedy answer, and the number of tokens of the prompt."""
    answer = client.completions.create(
        model=MODEL, prompt=prompt, suffix=suffix, max_tokens=NUM_NEW, temperature=0
    )
    assert answer.usage is not None
    return answer.choices[0].text, answer.usage.prompt_tokens


def test_the_prompt_has_the_tokens_of_the_model(client: openai.OpenAI) -> None:
    expected = _completion(client, PROMPT)
    assert expected[0]
    assert expected != _completion(client, BEFORE)
    assert _completion(client, BEFORE, AFTER) == expected


def test_a_file_may_begin_with_the_answer(client: openai.OpenAI) -> None:
    prompt = f"<|fim_prefix|><|fim_suffix|>{AFTER}<|fim_middle|>"
    assert _completion(client, "", AFTER) == _completion(client, prompt)


def test_streams_and_several_prompts(client: openai.OpenAI) -> None:
    first, second = _completion(client, BEFORE, AFTER)[0], _completion(client, "x = ", AFTER)[0]
    stream = client.completions.create(
        model=MODEL,
        prompt=[BEFORE, "x = "],
        suffix=AFTER,
        max_tokens=NUM_NEW,
        temperature=0,
        stream=True,
    )
    texts = ["", ""]
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [first, second]


def test_ollama(server: ServerProcess, client: openai.OpenAI) -> None:
    with ollama.Client(host=server.http_url) as ollamas:
        assert "insert" in (ollamas.show(MODEL).capabilities or ())
        options = {"temperature": 0, "num_predict": NUM_NEW}
        for before in (BEFORE, ""):
            answer = ollamas.generate(MODEL, before, suffix=AFTER, options=options)
            assert answer.response == _completion(client, before, AFTER)[0]
        with pytest.raises(ollama.ResponseError, match="system: is not combined with suffix"):
            ollamas.generate(MODEL, BEFORE, suffix=AFTER, system="x")


def test_grpc(server: ServerProcess, client: openai.OpenAI) -> None:
    with Client(server.target) as grpc:
        result = grpc.generate(MODEL, BEFORE, suffix=AFTER, max_new_tokens=NUM_NEW)
    assert result.outputs[0].text == _completion(client, BEFORE, AFTER)[0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"echo": True}, "echo: is not available with suffix"),
        ({"prompt": [1, 2]}, "suffix: needs inputs that are texts"),
        ({"prompt": "x" * 600}, "prompt[0]: has "),
        ({"prompt": ["x"] * 9, "suffix": "x" * 60_000}, "suffix: with every input has more than "),
    ],
)
def test_errors_name_the_field(
    server: ServerProcess, body: dict[str, object], message: str
) -> None:
    whole = {"model": MODEL, "prompt": BEFORE, "suffix": AFTER, "max_tokens": 4, **body}
    answer = httpx2.post(f"{server.http_url}/v1/completions", json=whole)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)
