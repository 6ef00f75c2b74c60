"""Anthropic's own client, unmodified, against a real server."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import httpx2
import pytest
from pydantic import BaseModel

from tests.frontends.http.chats import num_tokens
from tests.frontends.http.chats import running as running  # noqa: PLC0414
from tests.server.test_grammar import byte_level
from tests.serving import ServerProcess

NUM_IDS = byte_level().get_vocab_size()
ASK: Any = [{"role": "user", "content": "How is the weather?"}]
WEATHER: Any = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
SAID = "<think>\nRome, or Oslo?\n</think>\n\nSunny."
THOUGHT = "Rome, or Oslo?"


@pytest.fixture(scope="module")
def client(running: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=running.http_url, api_key="none", max_retries=0) as opened:
        yield opened


def says(text: str) -> dict[str, Any]:
    """The model's output is ``text`` and one more token."""
    given = {"target_prefix": [text], "stop_token_ids": list(range(NUM_IDS)), "temperature": 0}
    return {"extra_body": given}


def ask(client: anthropic.Anthropic, messages: Any = ASK, **fields: Any) -> Any:
    given = {"model": "model", "max_tokens": 100, "messages": messages, **fields}
    return client.messages.create(**given)


def num_prompt_tokens(client: anthropic.Anthropic, messages: Any = ASK, **fields: Any) -> int:
    """As usage says, and as the client counts them before."""
    usage = ask(client, messages, max_tokens=1, **fields).usage
    counted = client.messages.count_tokens(model="model", messages=messages, **fields)
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    return counted.input_tokens


def streamed(client: anthropic.Anthropic, **fields: Any) -> tuple[Any, list[str]]:
    """The message that a stream is joined to, and the types of its raw events."""
    given: Any = {"model": "model", "max_tokens": 100, "messages": ASK, **fields}
    with client.messages.stream(**given) as stream:
        message = stream.get_final_message()
    raw = [event.type for event in client.messages.create(stream=True, **given)]
    return message, raw


def blocks_of(message: Any) -> list[dict[str, Any]]:
    """The blocks of a message, without ids, which differ."""
    blocks = [block.model_dump(exclude_none=True) for block in message.content]
    return [
        {name: value for name, value in block.items() if name not in ("id", "signature")}
        for block in blocks
    ]


def test_a_message(client: anthropic.Anthropic) -> None:
    answer = ask(client, **says("Sunny."))
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "model")
    (block,) = answer.content
    assert block.type == "text"
    assert block.text.startswith("Sunny.")
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert answer.id == f"msg_{answer._request_id}"
    assert num_prompt_tokens(client) == num_tokens("user: How is the weather?\nassistant:")


def test_a_stream_has_the_events_of_a_message(client: anthropic.Anthropic) -> None:
    options: Any = {"max_tokens": 20, "extra_body": {"temperature": 0, "ignore_eos": True}}
    whole = ask(client, **options)
    message, raw = streamed(client, **options)
    assert blocks_of(message) == blocks_of(whole)
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 20)
    assert whole.usage.output_tokens == 20
    assert raw == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * raw.count("content_block_delta"),
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert raw.count("content_block_delta") > 1


def test_a_stream_pings(running: ServerProcess) -> None:
    body = {"model": "model", "max_tokens": 1, "messages": ASK, "stream": True}
    lines = httpx2.post(f"{running.http_url}/v1/messages", json=body).text.splitlines()
    events = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert events[:2] == ["message_start", "ping"]
    datas = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [data["type"] for data in datas] == events


def test_thinking_is_a_block(client: anthropic.Anthropic) -> None:
    answer = ask(client, **says(SAID))
    thinking, text = answer.content
    assert (thinking.type, thinking.thinking) == ("thinking", THOUGHT)
    assert thinking.signature
    assert text.text.startswith("Sunny.")
    message, raw = streamed(client, **says(SAID))
    assert blocks_of(message) == blocks_of(answer)
    assert message.content[0].signature
    assert raw.count("content_block_start") == raw.count("content_block_stop") == 2


def test_thinking_can_be_omitted(client: anthropic.Anthropic) -> None:
    omitted = {"thinking": {"type": "adaptive", "display": "omitted"}, **says(SAID)}
    for message in (ask(client, **omitted), streamed(client, **omitted)[0]):
        thinking, text = message.content
        assert (thinking.type, thinking.thinking) == ("thinking", "")
        assert thinking.signature
        assert text.text.startswith("Sunny.")


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, ""),
        ({"thinking": {"type": "adaptive"}}, ""),
        ({"thinking": {"type": "disabled"}}, "<think></think>"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "<think>\n"),
        ({"output_config": {"effort": "high"}}, "<think>\n"),
        (
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}},
            "<think></think>",
        ),
    ],
)
def test_thinking_sets_the_switch_of_a_template(
    client: anthropic.Anthropic, fields: dict[str, Any], end: str
) -> None:
    prompt = f"user: How is the weather?\nassistant:{end}"
    assert num_prompt_tokens(client, **fields) == num_tokens(prompt)


def test_templates_get_systems_thinking_tools_and_results(client: anthropic.Anthropic) -> None:
    answer = [
        {"type": "thinking", "thinking": "Rome?", "signature": "s"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "t1", "content": "Sunny."},
        {
            "type": "tool_result",
            "tool_use_id": "t2",
            "content": [{"type": "text", "text": "Rain."}],
            "is_error": True,
        },
        {"type": "text", "text": "And", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": " now?"},
    ]
    messages = [
        *ASK,
        {"role": "assistant", "content": answer},
        {"role": "user", "content": results},
    ]
    messages.append({"role": "system", "content": "Answer."})
    schema = WEATHER["input_schema"]
    tool = {"name": "weather", "description": "The weather of a city.", "parameters": schema}
    described = json.dumps({"type": "function", "function": tool})
    prompt = (
        f"TOOLS {described}\nsystem: Be brief.\nuser: How is the weather?\n"
        'assistant: (Rome?)I look.<tool_call>weather {"city": "Rome"}</tool_call>\n'
        "tool: Sunny.(t1)\ntool: Rain.(t2)\nuser: And now?\nsystem: Answer.\nassistant:"
    )
    system = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
    for given in ("Be brief.", system):
        found = num_prompt_tokens(client, messages, system=given, tools=[WEATHER])
        assert found == num_tokens(prompt)
    hidden = num_prompt_tokens(
        client, messages, system="Be brief.", tools=[WEATHER], tool_choice={"type": "none"}
    )
    assert hidden == num_tokens(prompt.partition("\n")[2])


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_forced_use_of_a_tool(client: anthropic.Anthropic, choice: Any) -> None:
    fields = {"tools": [WEATHER], "tool_choice": choice, "extra_body": {"seed": 1}}
    answer = ask(client, **fields)
    assert answer.stop_reason == "tool_use"
    (use,) = answer.content
    assert (use.type, use.name) == ("tool_use", "weather")
    assert use.input in ({"city": "Rome"}, {"city": "Oslo"})
    message, raw = streamed(client, **fields)
    assert blocks_of(message) == blocks_of(answer)
    assert message.stop_reason == "tool_use"
    assert raw == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    turns = [*ASK, message.to_param()]
    turns.append(
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "Sunny."}],
        }
    )
    assert ask(client, turns, max_tokens=1, tools=[WEATHER]).content


def test_text_and_uses_of_tools(client: anthropic.Anthropic) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    fields = {"tools": [WEATHER], **says(f"{SAID}\n{call}{call}")}
    answer = ask(client, **fields)
    assert [block.type for block in answer.content][:4] == [
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]
    first, second = answer.content[2:4]
    assert first.input == second.input == {"city": "Rome"}
    assert first.id != second.id
    message, _ = streamed(client, **fields)
    assert message.content[2].input == {"city": "Rome"}
    assert message.stop_reason == answer.stop_reason == "tool_use"
    single = {"type": "auto", "disable_parallel_tool_use": True}
    uses = [block.type for block in ask(client, tool_choice=single, **fields).content]
    assert uses.count("tool_use") == 1


def test_a_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    greedy: Any = {"max_tokens": 30, "extra_body": {"temperature": 0, "ignore_eos": True}}
    text = ask(client, **greedy).content[0].text
    stop = text[4:7]
    fields = {**greedy, "stop_sequences": ["never", stop]}
    for message in (ask(client, **fields), streamed(client, **fields)[0]):
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
        assert message.content[0].text == text[: text.index(stop)]


class City(BaseModel):
    name: Literal["Rome", "Oslo"]


def test_texts_fit_a_schema(client: anthropic.Anthropic) -> None:
    answer = client.messages.parse(
        model="model",
        max_tokens=1000,
        messages=ASK,
        output_format=City,
        extra_body={"seed": 1},
    )
    assert answer.parsed_output is not None
    assert answer.parsed_output.name in ("Rome", "Oslo")


def test_cached_tokens_are_counted_apart(client: anthropic.Anthropic) -> None:
    messages = [{"role": "user", "content": "A long question, asked twice. " * 10}]
    first = ask(client, messages, max_tokens=2).usage
    again = ask(client, messages, max_tokens=2).usage
    assert first.cache_read_input_tokens == 0
    assert again.cache_read_input_tokens > 0
    assert again.input_tokens + again.cache_read_input_tokens == first.input_tokens
    message, _ = streamed(client, messages=messages, max_tokens=2)
    assert message.usage.cache_read_input_tokens > 0
    total = message.usage.input_tokens + message.usage.cache_read_input_tokens
    assert total == first.input_tokens


def test_fields_without_effect(client: anthropic.Anthropic) -> None:
    options: Any = {"max_tokens": 8, "extra_body": {"temperature": 0}}
    expected = blocks_of(ask(client, tools=[WEATHER], **options))
    cached: Any = {"cache_control": {"type": "ephemeral"}}
    options["extra_body"] |= {"speed": "standard", "user_profile_id": "7"}
    answer = ask(
        client,
        [{"role": "user", "content": [{"type": "text", "text": ASK[0]["content"], **cached}]}],
        metadata={"user_id": "7"},
        service_tier="auto",
        extra_headers={"anthropic-beta": "context-1m-2025-08-07"},
        tools=[{**WEATHER, **cached, "strict": True}],
        **cached,
        **options,
    )
    assert blocks_of(answer) == expected


def test_models_are_listed(client: anthropic.Anthropic, running: ServerProcess) -> None:
    (model,) = client.models.list()
    assert (model.id, model.display_name, model.type) == ("model", "model", "model")
    assert model.max_input_tokens == 2048
    assert model.created_at.year == 1970
    assert client.models.retrieve("model") == model
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.models.retrieve("other/model")
    assert kind_of(caught.value) == "not_found_error"
    openai_models = httpx2.get(f"{running.http_url}/v1/models").json()
    assert openai_models["object"] == "list"


def kind_of(error: anthropic.APIStatusError) -> str:
    """The type of an error; its body has no other fields than Anthropic's."""
    body: Any = error.body
    assert body.keys() == {"type", "error"}
    assert body["error"].keys() == {"type", "message"}
    assert error.request_id
    return str(body["error"]["type"])
