"""Tokens of chats: vLLM's ``/tokenize`` of messages."""

from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from tests.frontends.http.chats import num_tokens
from tests.frontends.http.chats import running as running  # noqa: PLC0414
from tests.serving import ServerProcess

ASK: Any = [{"role": "user", "content": "How is the weather?"}]
PROMPT = "user: How is the weather?\nassistant:"
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.fixture(scope="module")
def chats(running: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{running.http_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def http(running: ServerProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=running.http_url) as client:
        yield client


def tokenize(http: httpx2.Client, **fields: Any) -> httpx2.Response:
    return http.post("/tokenize", json={"model": "model", **fields})


def test_messages_are_tokenized_as_the_prompt_of_a_chat(http: httpx2.Client) -> None:
    plain = tokenize(http, prompt=PROMPT, return_token_strs=True, add_special_tokens=False).json()
    assert plain["count"] == num_tokens(PROMPT)
    assert tokenize(http, messages=ASK, return_token_strs=True).json() == plain
    neutral = {"add_special_tokens": False, "add_generation_prompt": True}
    assert tokenize(http, messages=ASK, **neutral).json()["tokens"] == plain["tokens"]
    given: list[tuple[dict[str, Any], str]] = [
        ({"tools": [TOOL]}, f'TOOLS {{"type": "function", "function": {{"name": "f"}}}}\n{PROMPT}'),
        ({"chat_template_kwargs": {"enable_thinking": True}}, f"{PROMPT}<think>\n"),
    ]
    for fields, prompt in given:
        assert tokenize(http, messages=ASK, **fields).json()["count"] == num_tokens(prompt)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": ASK}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [*ASK, {"role": "x", "content": "a"}]}, "messages[1].role"),
        (
            {"messages": ASK, "tools": [{"type": "function", "function": {"name": "f g"}}]},
            "tools[0]",
        ),
        ({"messages": ASK, "chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs"),
        ({"messages": ASK, "add_generation_prompt": False}, "add_generation_prompt"),
        ({"messages": ASK, "continue_final_message": True}, "continue_final_message"),
        ({"messages": ASK, "add_special_tokens": True}, "add_special_tokens"),
        ({"messages": ASK, "chat_template": "a"}, "chat_template"),
    ],
)
def test_errors_of_tokenize_name_the_field(
    http: httpx2.Client, fields: dict[str, Any], param: str
) -> None:
    answer = tokenize(http, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)
