"""Tokens of chats: counts of reasoning, and vLLM's ids, log-probabilities and ``/tokenize``."""

import json
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
END = 0  # the model's end token
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


GREEDY: Any = {"model": "model", "max_tokens": 6, "temperature": 0, "ignore_eos": True}


def post(http: httpx2.Client, path: str, **fields: Any) -> Any:
    answer = http.post(f"/v1/{path}", json={**GREEDY, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(http: httpx2.Client, path: str, **fields: Any) -> list[Any]:
    """The events of a stream."""
    lines = http.post(f"/v1/{path}", json={**GREEDY, **fields, "stream": True}).text.splitlines()
    *events, done = [line.removeprefix("data: ") for line in lines if line]
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def test_chats_return_token_ids(http: httpx2.Client) -> None:
    prompt = tokenize(http, messages=ASK).json()["tokens"]
    plain = post(http, "chat/completions", messages=ASK)
    assert "prompt_token_ids" not in plain
    whole = post(http, "chat/completions", messages=ASK, return_token_ids=True)
    assert whole["prompt_token_ids"] == prompt
    (choice,) = whole["choices"]
    ids = choice.pop("token_ids")
    assert [choice] == plain["choices"]
    assert len(ids) == 6
    assert byte_level().decode(ids) == choice["message"]["content"]
    events = streamed(http, "chat/completions", messages=ASK, return_token_ids=True)
    assert [event.get("prompt_token_ids") for event in events] == [prompt] + [None] * (
        len(events) - 1
    )
    assert [id_ for event in events for id_ in event["choices"][0]["token_ids"]] == ids
    ended = {"return_token_ids": True, "ignore_eos": False, "logit_bias": {END: 100}}
    (choice,) = post(http, "chat/completions", messages=ASK, **ended)["choices"]
    assert (choice["token_ids"], choice["message"]["content"]) == ([END], "")
    several = {"n": 2, "temperature": 1, "seed": 1, "return_token_ids": True}
    both = post(http, "chat/completions", messages=ASK, **several)
    assert both["prompt_token_ids"] == prompt
    assert [len(each["token_ids"]) for each in both["choices"]] == [6, 6]


def test_completions_return_token_ids(http: httpx2.Client) -> None:
    prompts = ["How is", "And now?"]
    given = [byte_level().encode(prompt).ids for prompt in prompts]
    plain = post(http, "completions", prompt=prompts)["choices"]
    choices = post(http, "completions", prompt=prompts, return_token_ids=True)["choices"]
    assert [choice.pop("prompt_token_ids") for choice in choices] == given
    ids = [choice.pop("token_ids") for choice in choices]
    assert choices == plain
    texts = [byte_level().decode([*before, *new]) for before, new in zip(given, ids, strict=True)]
    assert texts == [prompts[n] + choice["text"] for n, choice in enumerate(choices)]
    found: dict[int, list[int]] = {0: [], 1: []}
    firsts: dict[int, Any] = {}
    for event in streamed(http, "completions", prompt=prompts, return_token_ids=True):
        (choice,) = event["choices"]
        firsts.setdefault(choice["index"], choice["prompt_token_ids"])
        found[choice["index"]] += choice["token_ids"]
    assert [found[0], found[1]] == ids
    assert [firsts[0], firsts[1]] == given
    echoed = post(http, "completions", prompt=given, return_token_ids=True, target_prefix=["x"])
    assert [choice["prompt_token_ids"] for choice in echoed["choices"]] == given


def test_chats_return_logprobs_of_their_prompt(http: httpx2.Client) -> None:
    prompt = tokenize(http, messages=ASK).json()["tokens"]
    fields: Any = {"messages": ASK, "logprobs": True, "top_logprobs": 1}
    plain = post(http, "chat/completions", **fields)
    whole = post(http, "chat/completions", **fields, prompt_logprobs=2)
    assert whole["choices"] == plain["choices"]
    first, *scored = whole["prompt_logprobs"]
    assert first is None
    assert [int(next(iter(found))) for found in scored] == prompt[1:]
    assert {rank for found in scored for rank in (each["rank"] for each in found.values())} >= {
        *(1, 2)
    }
    text = post(http, "completions", prompt=[prompt], prompt_logprobs=2)
    assert text["choices"][0]["prompt_logprobs"] == whole["prompt_logprobs"]
    alone = post(http, "chat/completions", messages=ASK, prompt_logprobs=0)
    assert alone["choices"][0]["logprobs"] is None
    assert {len(found) for found in alone["prompt_logprobs"][1:]} == {1}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 101}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "logprobs": True, "top_logprobs": 101}, "top_logprobs"),
        ({"prompt_logprobs": 1, "logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"return_token_ids": 7}, "return_token_ids"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
    ],
)
def test_errors_of_chats_name_the_field(
    chats: openai.OpenAI, fields: dict[str, Any], param: str
) -> None:
    body = {"model": "model", "messages": ASK, **fields}
    with pytest.raises(openai.BadRequestError) as caught:
        chats.post("/chat/completions", body=body, cast_to=object)
    assert caught.value.param == param


def test_errors_of_functions_name_the_new_field(chats: openai.OpenAI) -> None:
    create: Any = chats.chat.completions.create
    assert create(model="model", messages=ASK, max_tokens=1, function_call="auto").choices
    for fields, other in (
        ({"functions": [{"name": "f"}]}, "tools"),
        ({"function_call": {"name": "f"}}, "tool_choice"),
    ):
        with pytest.raises(openai.BadRequestError, match=f"is not supported: send {other}"):
            create(model="model", messages=ASK, **fields)


def test_responses_have_no_token_ids(chats: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chats.responses.create(model="model", input=ASK, extra_body={"return_token_ids": True})
    assert caught.value.param == "return_token_ids"


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
