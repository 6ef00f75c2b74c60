"""Tools in chats: OpenAI's own client, unmodified, against a real server."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from client import types
from client.errors import TriuneError
from client.sync import Client
from tests.frontends.conftest import DECODER
from tests.server.chat_models import chat_bundles
from tests.server.test_grammar import byte_level
from tests.serving import ServerProcess, server_process

TEMPLATE = (
    "{% if tools %}TOOLS{% for tool in tools %} {{ tool | tojson }}{% endfor %}"
    "{{ '\n' }}{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}</tool_call>{% endfor %}"
    "{% if message.tool_call_id %}({{ message.tool_call_id }}){% endif %}{{ '\n' }}{% endfor %}"
    "{% if enable_thinking %}think{% endif %}assistant:"
)
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"City": {"enum": ["Rome", "Oslo"]}},
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
TIME: Any = {"type": "function", "function": {"name": "time", "description": "Now."}}
ASK: Any = [{"role": "user", "content": "What is the weather?"}]
CALL = '{"name": "weather", "arguments": {"city": "Rome", "days": 3}}'


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of a random decoder whose chat template describes tools."""
    root = tmp_path_factory.mktemp("tools")
    with server_process(chat_bundles(root, byte_level(), TEMPLATE, 2048)) as server:
        yield server


@pytest.fixture(scope="module")
def tools(running: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{running.http_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, messages: Any = ASK, **fields: Any) -> Any:
    given = {"model": "model", "max_tokens": 200, "seed": 1, "messages": messages, **fields}
    return client.chat.completions.create(**given)


def says(*texts: str) -> dict[str, Any]:
    """The model's whole output is one of ``texts``."""
    return {"extra_body": {"structured_outputs": {"choice": list(texts)}}}


def streamed(client: openai.OpenAI, **fields: Any) -> tuple[str, dict[int, Any], str]:
    """The text, the calls by index, and the reason of the end."""
    text, calls, reason = "", {}, ""
    for event in ask(client, stream=True, **fields):
        (choice,) = event.choices
        text += choice.delta.content or ""
        for call in choice.delta.tool_calls or ():
            calls[call.index] = call
        reason = choice.finish_reason or reason
    return text, calls, reason


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "function": {"name": "weather"}},
        {"function": {"name": "weather"}},
    ],
)
def test_a_forced_call_fits_its_parameters(tools: openai.OpenAI, choice: Any) -> None:
    offered = [WEATHER] if choice == "required" else [TIME, WEATHER]
    (answer,) = ask(tools, tools=offered, tool_choice=choice).choices
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content is None
    (call,) = answer.message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    arguments = json.loads(call.function.arguments)
    assert arguments.keys() == {"city", "days"}
    assert arguments["city"] in ("Rome", "Oslo")
    assert arguments["days"] <= 9
    text, calls, reason = streamed(tools, tools=offered, tool_choice=choice)
    assert (text, reason) == ("", "tool_calls")
    assert calls[0].function.model_dump() == call.function.model_dump()
    assert len(calls[0].id) == len(call.id) == 9


def test_calls_and_text_of_the_model(tools: openai.OpenAI) -> None:
    written = f"I look.\n<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>"
    fields: Any = {"tools": [WEATHER, TIME], **says(written)}
    (answer,) = ask(tools, **fields).choices
    assert (answer.message.content, answer.finish_reason) == ("I look.", "tool_calls")
    first, second = answer.message.tool_calls
    assert first.function == second.function
    assert json.loads(first.function.arguments) == {"city": "Rome", "days": 3}
    assert first.id != second.id
    text, calls, reason = streamed(tools, **fields)
    assert (text, reason, [*calls]) == ("I look.", "tool_calls", [0, 1])
    (answer,) = ask(tools, parallel_tool_calls=False, **fields).choices
    assert len(answer.message.tool_calls) == 1
    without: list[dict[str, Any]] = [{"tool_choice": "none"}, {"tools": [TIME]}, {"tools": []}]
    for others in without:
        (answer,) = ask(tools, **{**fields, **others}).choices
        assert (answer.message.content, answer.message.tool_calls) == (written, None)
        assert answer.finish_reason == "stop"
        assert streamed(tools, **{**fields, **others}) == (written, {}, "stop")


def test_a_call_that_was_cut_is_text(tools: openai.OpenAI) -> None:
    fields: Any = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 12}
    (answer,) = ask(tools, **fields).choices
    assert (answer.finish_reason, answer.message.tool_calls) == ("length", None)
    assert answer.message.content == '{"name": "we'


def prompt_matches(client: openai.OpenAI, prompt: str, messages: Any, **fields: Any) -> bool:
    """Whether the prompt has as many tokens as ``prompt``."""
    num_tokens: int = ask(client, messages, max_tokens=1, **fields).usage.prompt_tokens
    return num_tokens == len(byte_level().encode(prompt).ids)


def test_the_template_reads_tools_calls_and_results(tools: openai.OpenAI) -> None:
    function = {"name": "weather", "arguments": '{"city":"Rome"}'}
    conversation: Any = [
        *ASK,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "abc", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "abc", "content": "Sunny."},
    ]
    turns = (
        "user: What is the weather?\n"
        'assistant: <tool_call>weather {"city": "Rome"}</tool_call>\n'
        "tool: Sunny.(abc)\n"
    )
    assert prompt_matches(tools, f"{turns}assistant:", conversation)
    described = f"TOOLS {json.dumps(TIME)}\n{turns}assistant:"
    assert prompt_matches(tools, described, conversation, tools=[TIME])
    thinking = {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}
    assert prompt_matches(tools, f"{turns}thinkassistant:", conversation, **thinking)


FLAT: Any = [{"type": "function", "strict": None, **WEATHER["function"]}]


def respond(client: openai.OpenAI, given: Any = "What is the weather?", **fields: Any) -> Any:
    return client.responses.create(
        **{"model": "model", "input": given, "max_output_tokens": 200, "tools": FLAT, **fields}
    )


def events_of(client: openai.OpenAI, **fields: Any) -> tuple[Any, list[str]]:
    """The completed response of a stream, and the types of the events of its items."""
    events = list(respond(client, stream=True, **fields))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    items = [event.item for event in events if event.type == "response.output_item.done"]
    assert items == events[-1].response.output
    indices = [event.output_index for event in events[2:-1]]
    assert indices == sorted(indices)
    return events[-1].response, [event.type for event in events[2:-1]]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_responses_with_a_forced_call(tools: openai.OpenAI, choice: Any) -> None:
    fields: Any = {"tool_choice": choice, "extra_body": {"seed": 1}}
    (item,) = respond(tools, **fields).output
    assert (item.type, item.name, item.status) == ("function_call", "weather", "completed")
    assert json.loads(item.arguments).keys() == {"city", "days"}
    response, types = events_of(tools, **fields)
    assert response.output[0].arguments == item.arguments
    assert types == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]


def test_responses_with_text_and_calls(tools: openai.OpenAI) -> None:
    written = f"I look.\n<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>"
    response = respond(tools, **says(written))
    message, *calls = response.output
    assert response.output_text == "I look."
    assert [json.loads(call.arguments) for call in calls] == [{"city": "Rome", "days": 3}] * 2
    streamed, types = events_of(tools, **says(written))
    assert streamed.output_text == "I look."
    assert len(streamed.output) == 3
    assert types.count("response.output_item.added") == 3
    assert "response.output_text.done" in types
    (message,) = respond(tools, tool_choice="none", **says(written)).output
    assert message.content[0].text == written


def test_responses_read_calls_and_their_results(tools: openai.OpenAI) -> None:
    """As :func:`test_the_template_reads_tools_calls_and_results`."""
    call = {"type": "function_call", "name": "weather", "arguments": '{"city":"Rome"}'}
    result = {"type": "function_call_output", "output": "Sunny."}
    items = [
        {"role": "user", "content": "What is the weather?"},
        {**call, "call_id": "a"},
        {**call, "call_id": "b", "id": "fc_b", "status": "completed"},
        {**result, "call_id": "a"},
        {**result, "call_id": "b", "output": [{"type": "input_text", "text": "Rain."}]},
    ]
    written = '<tool_call>weather {"city": "Rome"}</tool_call>'
    prompt = (
        f"user: What is the weather?\nassistant: {written}{written}\n"
        "tool: Sunny.(a)\ntool: Rain.(b)\nassistant:"
    )
    usage = respond(tools, items, tools=[]).usage
    assert usage.input_tokens == len(byte_level().encode(prompt).ids)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tool_choice": "required", "text": {"format": {"type": "json_object"}}}, "tool_choice"),
        (
            {"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "1"}]},
            "input[0].arguments",
        ),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
    ],
)
def test_errors_of_responses_name_the_field(tools: openai.OpenAI, fields: Any, name: str) -> None:
    given = {"model": "model", "input": "x", "tools": FLAT, **fields}
    with pytest.raises(openai.BadRequestError) as caught:
        tools.responses.create(**given)
    assert caught.value.param == name, caught.value.message


def call_with(**changes: Any) -> Any:
    call = {"id": "a", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    return [*ASK, {"role": "assistant", "content": "", "tool_calls": [{**call, **changes}]}]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [TIME, WEATHER, TIME]}, "tools[2].function.name"),
        ({"tools": [TIME] * 129}, "tools"),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "description": "é" * 40000}}
                ]
            },
            "tools",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any", "tools": [TIME]}, "tool_choice"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": [TIME]},
            "tool_choice",
        ),
        (
            {
                "tool_choice": "required",
                "tools": [TIME],
                "response_format": {"type": "json_object"},
            },
            "tool_choice",
        ),
        (
            {
                "tool_choice": "required",
                "tools": [
                    {"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}
                ],
            },
            "tools",
        ),
        ({"messages": call_with(type="custom")}, "messages[1].tool_calls[0].type"),
        (
            {"messages": call_with(function={"name": "time", "arguments": "[]"})},
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            {"messages": call_with(function={"name": "f", "arguments": " " * (1 << 20) + "{}"})},
            "messages",
        ),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
        ({"extra_body": {"chat_template_kwargs": {"tools": 1}}}, "chat_template_kwargs"),
        ({"extra_body": {"chat_template_kwargs": {"x": "y" * 70000}}}, "chat_template_kwargs"),
    ],
)
def test_errors_name_the_field(tools: openai.OpenAI, fields: Any, name: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(tools, **fields)
    assert caught.value.param == name, caught.value.message


@pytest.fixture(scope="module")
def client_of_tools(running: ServerProcess) -> Iterator[Client]:
    with Client(running.target) as client:
        yield client


def test_grpc_forces_finds_and_reads_calls(client_of_tools: Client) -> None:
    tool = types.Tool("weather", "Tells it.", json.dumps(PARAMETERS))
    options: Any = {"tools": [tool], "max_new_tokens": 300, "temperature": 1, "seed": 1}
    turn = types.Message("user", "What is the weather?")
    forced: Any = {**options, "tool_choice": types.ToolChoice.REQUIRED}
    (output,) = client_of_tools.generate("model", messages=[turn], **forced).outputs
    (call,) = output.tool_calls
    assert (output.text, call.name, len(call.id)) == ("", "weather", 9)
    assert json.loads(call.arguments).keys() == {"city", "days"}
    pieces = list(client_of_tools.generate_stream("model", messages=[turn], **forced))
    assert [c.arguments for piece in pieces for c in piece.tool_calls] == [call.arguments]
    assert not any(piece.text for piece in pieces)

    written = f"I look.\n<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>"
    said: Any = {**options, "grammar": types.Choices((written,))}
    (output,) = client_of_tools.generate("model", messages=[turn], **said).outputs
    assert (output.text, len(output.tool_calls)) == ("I look.", 2)
    (output,) = client_of_tools.generate(
        "model", messages=[turn], **said, parallel_tool_calls=False
    ).outputs
    assert len(output.tool_calls) == 1
    (output,) = client_of_tools.generate(
        "model", messages=[turn], **said, tool_choice=types.ToolChoice.NONE
    ).outputs
    assert (output.text, output.tool_calls) == (written, ())
    several = client_of_tools.generate("model", messages=[turn], **said, num_hypotheses=2)
    assert [len(each.tool_calls) for each in several.outputs[0].hypotheses] == [2, 2]

    answer = types.Message("assistant", "", (call,))
    result = types.Message("tool", "Sunny.", tool_call_id=call.id)
    thinking = '{"enable_thinking": true}'
    usage = client_of_tools.generate(
        "model", messages=[turn, answer, result], max_new_tokens=1, template_variables=thinking
    ).usage
    arguments = json.dumps(json.loads(call.arguments))
    prompt = (
        "user: What is the weather?\n"
        f"assistant: <tool_call>weather {arguments}</tool_call>\n"
        f"tool: Sunny.({call.id})\nthinkassistant:"
    )
    assert usage.input_tokens == len(byte_level().encode(prompt).ids)


CALLED = types.Message("assistant", "", (types.ToolCall("a", "time", "[]"),))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tools": [types.Tool("a b")]}, "chat.tools[0].name"),
        ({"tools": [types.Tool("a"), types.Tool("a")]}, "chat.tools[1].name"),
        ({"tools": [types.Tool("a", parameters="[]")]}, "chat.tools[0].parameters"),
        ({"tools": [types.Tool("a", "x" * 70_000)]}, "chat.tools"),
        ({"tools": [types.Tool("a", "x" * 40_000, json.dumps({"a": "x" * 40_000}))]}, "chat.tools"),
        ({"tools": [types.Tool("a", parameters='{"type": 1}')], "tool_name": "a"}, "chat.tools"),
        ({"tools": [types.Tool("a")], "tool_name": "b"}, "chat.tool_name"),
        ({"tool_choice": types.ToolChoice.REQUIRED}, "chat.tool_choice"),
        (
            {
                "tools": [types.Tool("a")],
                "tool_name": "a",
                "grammar": types.Regex("a"),
            },
            "chat.tool_choice",
        ),
        ({"template_variables": "x"}, "chat.template_variables"),
        ({"template_variables": '{"messages": 1}'}, "chat.template_variables"),
        ({"messages": [CALLED]}, "messages[0].tool_calls[0].arguments"),
        ({"messages": [], "inputs": "x", "tools": [types.Tool("a")]}, "chat"),
    ],
)
def test_grpc_errors_name_the_field(client_of_tools: Client, options: Any, field: str) -> None:
    with pytest.raises(TriuneError) as caught:
        client_of_tools.generate(
            "model", **{"messages": [types.Message("user", "x")], "max_new_tokens": 1, **options}
        )
    (violation,) = caught.value.violations
    assert violation.field == field, caught.value


def test_deep_values_are_refused(running: ServerProcess) -> None:
    """Whether the body, its conversion or the template is the first to give up."""
    head = '{"model": "model", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}'
    with httpx2.Client(base_url=running.http_url, timeout=60) as http:
        for depth in (*range(944, 989, 4), 100_000):
            deep = '{"a":' * depth + "1" + "}" * depth
            function = f'{{"type": "function", "function": {{"name": "f", "parameters": {deep}}}}}'
            call = f'{{"function": {{"name": "f", "arguments": {json.dumps(deep)}}}}}'
            for body in (
                f'{head}], "tools": [{function}]}}',
                f'{head}], "tools": [{function}], "tool_choice": "required"}}',
                f'{head}, {{"role": "assistant", "tool_calls": [{call}]}}]}}',
                f'{head}], "chat_template_kwargs": {deep}}}',
            ):
                answer = http.post("/v1/chat/completions", content=body)
                expected = (200, 400) if "kwargs" in body else (400,)
                assert answer.status_code in expected, (depth, body[:100])


def test_a_template_without_tools_refuses_them(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, model=DECODER, tools=[TIME], messages=[{"role": "user", "content": "7,8,"}])
    assert caught.value.param == "tools"
