"""Reasoning in chats: OpenAI's own client, unmodified, against a real server."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from client import types
from client.errors import TriuneError
from client.sync import Client
from tests.server.chat_models import chat_bundles
from tests.server.test_grammar import byte_level
from tests.serving import ServerProcess, server_process

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: "
    "{% if message.reasoning_content %}({{ message.reasoning_content }}){% endif %}"
    "{{ message.content }}{{ '\n' }}{% endfor %}assistant:"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>"
    "{% elif enable_thinking %}<think>{{ '\n' }}{% endif %}"
)
ASK: Any = [{"role": "user", "content": "How is the weather?"}]
SAID = "<think>\nRome, or Oslo?\n</think>\n\nSunny."
THOUGHT = "Rome, or Oslo?"
END = 0  # the model's end token


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of a random decoder whose chat template has a switch for reasoning."""
    root = tmp_path_factory.mktemp("reasoning")
    with server_process(chat_bundles(root, byte_level(), TEMPLATE, 2048)) as server:
        yield server


@pytest.fixture(scope="module")
def reasoning(running: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{running.http_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def grpc_client(running: ServerProcess) -> Iterator[Client]:
    with Client(running.target) as client:
        yield client


def says(text: str) -> dict[str, Any]:
    """The model's output is ``text``."""
    return {"extra_body": {"target_prefix": [text], "logit_bias": {END: 100}}}


def ask(client: openai.OpenAI, messages: Any = ASK, **fields: Any) -> Any:
    given = {"model": "model", "max_tokens": 100, "messages": messages, **fields}
    return client.chat.completions.create(**given)


def test_chat_completions_separate_reasoning(reasoning: openai.OpenAI) -> None:
    (choice,) = ask(reasoning, **says(SAID)).choices
    assert (choice.message.reasoning_content, choice.message.content) == (THOUGHT, "Sunny.")
    assert choice.finish_reason == "stop"
    thought = content = ""
    for event in ask(reasoning, stream=True, **says(SAID)):
        delta = event.choices[0].delta
        assert not (content and hasattr(delta, "reasoning_content"))
        thought += getattr(delta, "reasoning_content", "")
        content += delta.content or ""
    assert (thought, content) == (THOUGHT, "Sunny.")


def test_a_text_without_reasoning_has_no_such_field(reasoning: openai.OpenAI) -> None:
    (choice,) = ask(reasoning, **says("Sunny.")).choices
    assert choice.message.content == "Sunny."
    assert not hasattr(choice.message, "reasoning_content")


def test_reasoning_can_be_left_out(reasoning: openai.OpenAI) -> None:
    fields = says(SAID)
    fields["extra_body"]["include_reasoning"] = False
    (choice,) = ask(reasoning, **fields).choices
    assert choice.message.content == "Sunny."
    assert not hasattr(choice.message, "reasoning_content")
    for event in ask(reasoning, stream=True, **fields):
        assert not hasattr(event.choices[0].delta, "reasoning_content")


def test_a_prompt_that_opens_reasoning(reasoning: openai.OpenAI) -> None:
    (choice,) = ask(reasoning, reasoning_effort="low", **says("Rome.\n</think>\nSunny.")).choices
    assert (choice.message.reasoning_content, choice.message.content) == ("Rome.", "Sunny.")
    (choice,) = ask(reasoning, reasoning_effort="low", **says("Rome.")).choices
    assert (choice.message.reasoning_content, choice.message.content) == ("Rome.", "")
    (choice,) = ask(reasoning, reasoning_effort="none", **says("Sunny.")).choices
    assert choice.message.content == "Sunny."


def test_a_grammar_matches_the_whole_output(reasoning: openai.OpenAI) -> None:
    chosen = {"extra_body": {"structured_outputs": {"choice": [SAID]}}}
    (choice,) = ask(reasoning, **chosen).choices
    assert choice.message.content == SAID


def num_prompt_tokens(client: openai.OpenAI, messages: Any, **fields: Any) -> int:
    found: int = ask(client, messages, max_tokens=1, **fields).usage.prompt_tokens
    return found


def num_tokens(prompt: str) -> int:
    return len(byte_level().encode(prompt).ids)


def test_templates_get_the_reasoning_of_earlier_answers(reasoning: openai.OpenAI) -> None:
    prompt = "user: How is the weather?\nassistant: (Rome?)Sunny.\nuser: And now?\nassistant:"
    for name in ("reasoning_content", "reasoning"):
        answer = {"role": "assistant", "content": "Sunny.", name: "Rome?"}
        messages = [*ASK, answer, {"role": "user", "content": "And now?"}]
        assert num_prompt_tokens(reasoning, messages) == num_tokens(prompt)


def test_the_effort_sets_the_switch_of_a_template(reasoning: openai.OpenAI) -> None:
    prompt = "user: How is the weather?\nassistant:"
    assert num_prompt_tokens(reasoning, ASK) == num_tokens(prompt)
    for effort, end in (("none", "<think></think>"), ("high", "<think>\n")):
        found = num_prompt_tokens(reasoning, ASK, reasoning_effort=effort)
        assert found == num_tokens(prompt + end)


def respond(client: openai.OpenAI, given: Any = "How is the weather?", **fields: Any) -> Any:
    return client.responses.create(model="model", input=given, max_output_tokens=100, **fields)


def test_responses_have_an_item_of_reasoning(reasoning: openai.OpenAI) -> None:
    answer = respond(reasoning, **says(SAID))
    thought, message = answer.output
    assert (thought.type, thought.content[0].text) == ("reasoning", THOUGHT)
    assert (message.type, answer.output_text) == ("message", "Sunny.")


def test_a_stream_of_responses_has_the_events_of_reasoning(reasoning: openai.OpenAI) -> None:
    with reasoning.responses.stream(
        model="model", input="How is the weather?", max_output_tokens=100, **says(SAID)
    ) as stream:
        events: list[Any] = list(stream)
        final: Any = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.reasoning_text.delta"] * kinds.count("response.reasoning_text.delta"),
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * kinds.count("response.output_text.delta"),
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == THOUGHT
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.type for item in done] == ["reasoning", "message"]
    assert [item.id for item in done] == [item.id for item in final.output]
    assert done[0].model_dump() == final.output[0].model_dump()
    assert (done[1].content[0].text, final.output_text) == ("Sunny.", "Sunny.")
    places = [event.output_index for event in events if event.type == "response.output_item.added"]
    assert places == [0, 1]


def test_responses_read_the_reasoning_of_earlier_answers(reasoning: openai.OpenAI) -> None:
    first = respond(reasoning, **says(SAID))
    items = [*ASK, *(item.model_dump() for item in first.output), *ASK]
    turn = "user: How is the weather?\n"
    prompt = f"{turn}assistant: ({THOUGHT})Sunny.\n{turn}assistant:"
    assert respond(reasoning, items).usage.input_tokens == num_tokens(prompt)
    effort: Any = {"effort": "none"}
    found = respond(reasoning, items, reasoning=effort).usage.input_tokens
    assert found == num_tokens(prompt + "<think></think>")


def test_a_message_has_no_parts_of_reasoning(reasoning: openai.OpenAI) -> None:
    part = {"type": "reasoning_text", "text": "Rome?"}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(reasoning, [{"role": "user", "content": [part]}])
    assert caught.value.param == "messages[0].content[0].type"


def test_grpc_separates_reasoning_if_asked(grpc_client: Client) -> None:
    options: Any = {
        "messages": [types.Message("user", "How is the weather?")],
        "target_prefix": SAID,
        "logit_bias": {END: 100},
        "max_new_tokens": 100,
    }
    (output,) = grpc_client.generate("model", **options).outputs
    assert (output.reasoning, output.text) == ("", SAID)
    (output,) = grpc_client.generate("model", **options, separate_reasoning=True).outputs
    assert (output.reasoning, output.text) == (THOUGHT, "Sunny.")
    several: Any = {**options, "separate_reasoning": True, "num_hypotheses": 2, "temperature": 1}
    (output,) = grpc_client.generate("model", **several).outputs
    assert [(each.reasoning, each.text) for each in output.hypotheses] == [(THOUGHT, "Sunny.")] * 2
    pieces = list(grpc_client.generate_stream("model", **options, separate_reasoning=True))
    assert "".join(piece.reasoning for piece in pieces) == THOUGHT
    assert "".join(piece.text for piece in pieces) == "Sunny."


def test_a_thought_that_has_begun_goes_on(grpc_client: Client) -> None:
    begun = [types.Message("user", "How?"), types.Message("assistant", "<think>Rome")]
    options: Any = {"messages": begun, "max_new_tokens": 4, "ignore_eos": True}
    options |= {"continue_final_message": True, "separate_reasoning": True}
    result = grpc_client.generate("model", **options)
    assert result.outputs[0].text == ""
    assert result.usage.reasoning_tokens == result.usage.output_tokens == 4
    last = list(grpc_client.generate_stream("model", **options))[-1]
    assert last.usage is not None
    assert last.usage.reasoning_tokens == 4
    begun[-1] = types.Message("assistant", "<think>Rome</think>Sunny")
    result = grpc_client.generate("model", **options)
    assert result.outputs[0].reasoning == ""
    assert (result.usage.reasoning_tokens, result.usage.output_tokens) == (0, 4)


def test_grpc_templates_get_reasoning(grpc_client: Client) -> None:
    user = types.Message("user", "How is the weather?")
    answer = types.Message("assistant", "Sunny.", reasoning="Rome?")
    usage = grpc_client.generate(
        "model", messages=[user, answer, user], max_new_tokens=1, reasoning_effort="none"
    ).usage
    turn = "user: How is the weather?\n"
    prompt = f"{turn}assistant: (Rome?)Sunny.\n{turn}assistant:<think></think>"
    assert usage.input_tokens == num_tokens(prompt)


def test_reasoning_counts_as_bytes_of_messages(grpc_client: Client) -> None:
    answer = types.Message("assistant", "", reasoning="x" * (1 << 20))
    with pytest.raises(TriuneError) as caught:
        grpc_client.generate("model", messages=[types.Message("user", "x"), answer])
    (violation,) = caught.value.violations
    assert violation.field == "messages"
    assert "bytes" in violation.description
