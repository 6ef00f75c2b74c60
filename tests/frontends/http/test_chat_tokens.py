"""Tokens of chats: those of reasoning, and vLLM's ``/tokenize`` of messages."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from tests.frontends.http.chats import num_tokens
from tests.frontends.http.chats import running as running  # noqa: PLC0414
from tests.server.test_grammar import byte_level
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


def says(text: str) -> dict[str, Any]:
    """The model repeats the last character of ``text`` after the others."""
    return {"target_prefix": [text[:-1]], "logit_bias": {byte_level().token_to_id(text[-1]): 100}}


# What the model says, how many tokens it generates, and how many of these are reasoning.
REASONING = [
    ("<think>Rome</think>", 5, 1),
    ("<think>Romee", 5, 5),
    ("<think>Rome</think>\nSunnyy", 5, 0),
    ("<think", 1, 0),
    ("<think>", 1, 1),
    ("Sunnyy", 5, 0),
]


@pytest.mark.parametrize(("text", "num_output", "num_reasoning"), REASONING)
def test_reasoning_tokens_are_counted(
    chats: openai.OpenAI, text: str, num_output: int, num_reasoning: int
) -> None:
    given: Any = {"model": "model", "extra_body": says(text)}
    chat: Any = {**given, "messages": ASK, "max_tokens": num_output}
    usages = [chats.chat.completions.create(**chat).usage]
    chat["stream_options"] = {"include_usage": True}
    *_, last = chats.chat.completions.create(stream=True, **chat)
    usages.append(last.usage)
    chat["stream_options"] |= {"continuous_usage_stats": True}
    events = list(chats.chat.completions.create(stream=True, **chat))
    counts = [event.usage.completion_tokens_details.reasoning_tokens for event in events]
    assert counts == sorted(counts)
    assert events[-2].usage.completion_tokens_details == events[-1].usage.completion_tokens_details
    usages.append(events[-1].usage)
    for usage in usages:
        assert usage.completion_tokens == num_output
        assert usage.completion_tokens_details.reasoning_tokens == num_reasoning
    response: Any = {**given, "input": ASK, "max_output_tokens": num_output}
    *_, completed = chats.responses.create(stream=True, **response)
    for usage in (chats.responses.create(**response).usage, completed.response.usage):
        assert usage.output_tokens == num_output
        assert usage.output_tokens_details.reasoning_tokens == num_reasoning


def test_all_outputs_count(chats: openai.OpenAI) -> None:
    answer: Any = chats.chat.completions.create(
        model="model", messages=ASK, max_tokens=5, n=3, extra_body=says("<think>Rome</think>")
    )
    assert answer.usage.completion_tokens == 15
    assert answer.usage.completion_tokens_details.reasoning_tokens == 3


def test_anthropic_counts_thinking(running: ServerProcess) -> None:
    client = anthropic.Anthropic(base_url=running.http_url, api_key="none")
    given: Any = {
        "model": "model",
        "messages": ASK,
        "max_tokens": 5,
        "extra_body": {"target_prefix": ["<think>Rome"], "ignore_eos": True},
    }
    with client.messages.stream(**given) as stream:
        streamed = stream.get_final_message()
    for message in (client.messages.create(**given), streamed):
        assert message.usage.output_tokens_details is not None
        assert message.usage.output_tokens_details.thinking_tokens == 5


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
