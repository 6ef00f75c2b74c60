"""Tools, reasoning and schemas by Ollama's own client, unmodified, against a real server."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import ollama
import pytest

from tests.server.chat_models import chat_bundles
from tests.server.test_grammar import byte_level
from tests.serving import ServerProcess, server_process

MODEL = "model"
TEMPLATE = (
    "{% if tools %}TOOLS{% for tool in tools %} {{ tool | tojson }}{% endfor %}{% endif %}"
    "{% for message in messages %}{{ message.role }}: "
    "{% if message.reasoning_content %}({{ message.reasoning_content }}){% endif %}"
    "{{ message.content }}"
    "{% for call in message.tool_calls or [] %}[{{ call.id }} {{ call.function.name }} "
    "{{ call.function.arguments | tojson }}]{% endfor %}"
    "{% if message.tool_call_id %}({{ message.tool_call_id }}){% endif %}{{ '\n' }}{% endfor %}"
    "assistant:"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>"
    "{% elif enable_thinking %}<think>{% endif %}"
)
ASK: list[Any] = [{"role": "user", "content": "How is the weather?"}]
ASKED = "user: How is the weather?\n"
END = 0  # the model's end token
SAID = "<think>\nRome, or Oslo?\n</think>\n\nSunny."
THOUGHT = "Rome, or Oslo?"


def weather(city: str, days: int = 1) -> str:
    """Tells the weather.

    Args:
        city: where
        days: how many
    """
    return f"Sunny in {city} for {days} days."


CALL = '{"name": "weather", "arguments": {"city": "Rome", "days": 3}}'
CALLS = f"I look.\n<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of a random decoder whose chat template has tools, and a switch for reasoning."""
    root = tmp_path_factory.mktemp("ollama")
    with server_process(chat_bundles(root, byte_level(), TEMPLATE, 2048)) as server:
        yield server


@pytest.fixture(scope="module")
def ollamas(running: ServerProcess) -> Iterator[ollama.Client]:
    with ollama.Client(host=running.http_url) as client:
        yield client


def says(text: str) -> dict[str, Any]:
    """Options with which the model's output is ``text``."""
    return {"target_prefix": [text], "logit_bias": [[END, 100]], "num_predict": 200}


def num_tokens(prompt: str) -> int:
    ids: list[int] = byte_level().encode(prompt).ids
    return len(ids)


def num_prompt_tokens(client: ollama.Client, messages: Any, **fields: Any) -> int:
    answer = client.chat(MODEL, messages, options={"num_predict": 1}, **fields)
    found: int = answer["prompt_eval_count"]
    return found


def test_tools_are_called(ollamas: ollama.Client) -> None:
    whole = ollamas.chat(MODEL, ASK, tools=[weather], options=says(CALLS))
    assert (whole.message.content, whole.done_reason) == ("I look.", "stop")
    assert whole.message.tool_calls is not None
    functions = [call.function for call in whole.message.tool_calls]
    assert [(each.name, each.arguments) for each in functions] == [
        ("weather", {"city": "Rome", "days": 3})
    ] * 2
    assert weather(**functions[0].arguments) == "Sunny in Rome for 3 days."
    parts = list(ollamas.chat(MODEL, ASK, tools=[weather], options=says(CALLS), stream=True))
    found = [call for part in parts for call in part.message.tool_calls or ()]
    assert [call.function.arguments for call in found] == [each.arguments for each in functions]
    assert "".join(part.message.content or "" for part in parts) == "I look."
    assert parts[-1].message.tool_calls is None
    without = ollamas.chat(MODEL, ASK, options=says(CALLS))
    assert (without.message.content, without.message.tool_calls) == (CALLS, None)


def test_calls_are_counted_in_streams(running: ServerProcess) -> None:
    body = {
        "model": MODEL,
        "messages": ASK,
        "tools": [{"function": {"name": "weather"}}],
        "options": says(CALLS),
    }
    text = httpx2.post(f"{running.http_url}/api/chat", json=body, timeout=60).text
    lines = [json.loads(line)["message"] for line in text.splitlines()]
    calls = [call for line in lines for call in line.get("tool_calls", ())]
    assert [call["function"]["index"] for call in calls] == [0, 1]
    assert len({call["id"] for call in calls}) == 2


def test_the_template_gets_tools_calls_and_results(ollamas: ollama.Client) -> None:
    first = ollamas.chat(MODEL, ASK, tools=[weather], options=says(CALLS))
    results = [
        {"role": "tool", "tool_name": "weather", "content": "Sunny."},
        {"role": "tool", "tool_name": "weather", "content": "Rain."},
    ]
    written = 'weather {"city": "Rome", "days": 3}'
    expected = (
        f"{ASKED}assistant: I look.[000000001 {written}][000000002 {written}]\n"
        "tool: Sunny.(000000001)\ntool: Rain.(000000002)\nassistant:"
    )
    assert num_prompt_tokens(ollamas, [*ASK, first.message, *results]) == num_tokens(expected)
    described = num_prompt_tokens(ollamas, ASK, tools=[weather])
    plain = num_prompt_tokens(ollamas, ASK)
    assert described > plain == num_tokens(f"{ASKED}assistant:")


def test_results_are_joined_to_calls_by_name_and_id(running: ServerProcess) -> None:
    calls: list[Any] = [{"function": {"name": name, "arguments": {}}} for name in ("one", "two")]
    calls += [{"function": {"name": "one"}, "id": id_} for id_ in ("abc", "def")]
    messages = [
        *ASK,
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_name": "two", "content": "2"},
        {"role": "tool", "tool_call_id": "abc", "content": "3"},
        {"role": "tool", "content": "1"},
        {"role": "tool", "tool_name": "one", "content": "4"},
        {"role": "tool", "tool_name": "three", "content": "none"},
        {"role": "tool", "content": "none"},
    ]
    expected = (
        f"{ASKED}assistant: [000000001 one {{}}][000000002 two {{}}][abc one {{}}][def one {{}}]\n"
        "tool: 2(000000002)\ntool: 3(abc)\ntool: 1(000000001)\ntool: 4(def)\ntool: none\n"
        "tool: none\nassistant:"
    )
    body = {"model": MODEL, "messages": messages, "stream": False, "options": {"num_predict": 1}}
    answer = httpx2.post(f"{running.http_url}/api/chat", json=body, timeout=60).json()
    assert answer["prompt_eval_count"] == num_tokens(expected)


def test_thinking_is_apart_from_the_answer(ollamas: ollama.Client) -> None:
    chat: dict[str, Any] = {"options": says(SAID)}
    for whole in (ollamas.chat(MODEL, ASK, **chat), ollamas.chat(MODEL, ASK, think=None, **chat)):
        assert (whole.message.thinking, whole.message.content) == (THOUGHT, "Sunny.")
    parts = list(ollamas.chat(MODEL, ASK, stream=True, **chat))
    assert "".join(part.message.thinking or "" for part in parts) == THOUGHT
    assert "".join(part.message.content or "" for part in parts) == "Sunny."
    generated = ollamas.generate(MODEL, "How is the weather?", **chat)
    assert (generated.thinking, generated.response) == (THOUGHT, "Sunny.")
    pieces = list(ollamas.generate(MODEL, "How is the weather?", stream=True, **chat))
    assert "".join(piece.thinking or "" for piece in pieces) == THOUGHT
    assert ollamas.chat(MODEL, ASK, options=says("Sunny.")).message.thinking is None


def test_thinking_can_be_turned_off(ollamas: ollama.Client) -> None:
    for think, end in ((True, "<think>"), ("low", "<think>"), (False, "<think></think>")):
        found = num_prompt_tokens(ollamas, ASK, think=think)
        assert found == num_tokens(f"{ASKED}assistant:{end}")
    opened = ollamas.chat(MODEL, ASK, think=True, options=says("Rome.\n</think>\nSunny."))
    assert (opened.message.thinking, opened.message.content) == ("Rome.", "Sunny.")
    silent = ollamas.chat(MODEL, ASK, think=False, options=says(SAID))
    assert (silent.message.thinking, silent.message.content) == (None, "Sunny.")


def test_templates_get_the_thinking_of_earlier_answers(ollamas: ollama.Client) -> None:
    first = ollamas.chat(MODEL, ASK, options=says(SAID))
    found = num_prompt_tokens(ollamas, [*ASK, first.message, *ASK])
    assert found == num_tokens(f"{ASKED}assistant: ({THOUGHT})Sunny.\n{ASKED}assistant:")


def test_a_format_is_a_schema_or_json(ollamas: ollama.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"enum": [1, 2]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    spaces = [[id_, -100] for space in " \t\r\n" for id_ in byte_level().encode(space).ids]
    options = {"num_predict": 100, "logit_bias": spaces}
    whole = ollamas.chat(MODEL, ASK, format=schema, options=options)
    found = json.loads(whole.message.content or "")
    assert found["city"] in ("Rome", "Oslo")
    assert found["days"] in (1, 2)
    parts = ollamas.generate(MODEL, "Hi", format=schema, options=options, stream=True)
    assert json.loads("".join(part.response or "" for part in parts)).keys() == found.keys()
    as_json = ollamas.generate(MODEL, "Hi", format="json", raw=True, options=says('{"a":'))
    assert (as_json.response or "").startswith('{"a":')
    empty = ollamas.chat(MODEL, ASK, format="", options=says("Sunny."))
    assert empty.message.content == "Sunny."


def test_capabilities(ollamas: ollama.Client) -> None:
    assert ollamas.show(MODEL).capabilities == ["completion", "tools", "thinking"]


def called(**function: Any) -> dict[str, Any]:
    """An answer with a call of ``f``, but for what is given."""
    return {"role": "assistant", "tool_calls": [{"function": {"name": "f", **function}}]}


FUNCTION = "messages[0].tool_calls[0].function"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a type": ({"tools": [{"type": "x"}]}, "tools[0].type: 'x' is not supported"),
    "a name": ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name: "),
    "many tools": ({"tools": [{"function": {"name": "f"}}] * 129}, "tools: 129 given"),
    "arguments": ({"messages": [called(arguments="{")]}, f"{FUNCTION}.arguments: expected"),
    "a call without a name": ({"messages": [called(name=None)]}, f"{FUNCTION}.name: expected"),
    "many calls": (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * 129}]},
        "messages[0].tool_calls: 129 given",
    ),
    "large arguments": (
        {"messages": [called(arguments={"a": "x" * (1 << 20)})]},
        "messages: have more than 1048576 bytes of arguments",
    ),
    "both": ({"think": 3}, "think: expected bool | str | null"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_name_the_field(running: ServerProcess, name: str) -> None:
    fields, message = REFUSED[name]
    body = {"model": MODEL, "messages": ASK, **fields}
    answer = httpx2.post(f"{running.http_url}/api/chat", json=body, timeout=60)
    assert (answer.status_code, [*answer.json()]) == (400, ["error"]), answer.text
    assert answer.json()["error"].startswith(message)


def test_deep_values_are_refused(running: ServerProcess) -> None:
    """Whether the body, its conversion, the grammar or the template is the first to give up."""
    head = '{"model": "model", "messages": [{"role": "user", "content": "x"}'
    with httpx2.Client(base_url=running.http_url, timeout=60) as http:
        for depth in (*range(900, 999, 4), 100_000):
            deep = '{"a":' * depth + "1" + "}" * depth
            function = f'{{"function": {{"name": "f", "parameters": {deep}}}}}'
            call = f'{{"function": {{"name": "f", "arguments": {deep}}}}}'
            for body in (
                f'{head}], "tools": [{function}]}}',
                f'{head}, {{"role": "assistant", "tool_calls": [{call}]}}]}}',
                f'{head}], "format": {deep}}}',
            ):
                answer = http.post("/api/chat", content=body)
                assert answer.status_code == 400, (depth, body[:150], answer.text[:100])
