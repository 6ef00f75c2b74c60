"""A last message of the assistant that is continued, by every protocol."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from client.errors import TriuneError
from client.sync import Client
from client.tools import ToolCall
from client.types import Message as ClientMessage
from server.errors import InvalidArgumentError
from server.text.chat import ChatOptions, ChatTemplate, ContentPart, Message
from server.text.chat import ToolCall as ServedCall
from tests.server.chat_models import chat_bundles
from tests.server.test_grammar import metaspace
from tests.serving import ServerProcess, server_process

CHAT_ML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMED = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content | trim }} </s>"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
# As Qwen3's: the last answer gets an empty thought.
THINKING = (
    "{% for message in messages %}{% set content = message.content %}"
    "{% if message.role == 'assistant' %}"
    "{% set content = '<think>\n\n</think>\n\n' ~ content.split('</think>')[-1].lstrip('\n') %}"
    "{% endif %}{{ message.role }}: {{ content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
CONTINUED = ChatOptions(continue_final_message=True)
BEGUN = "red false 12"
TURNS = [("user", "true"), ("assistant", BEGUN)]
PROMPT = f"true {BEGUN}"
PROMPT_IDS = metaspace().encode(PROMPT, add_special_tokens=False).ids


def conversation(begun: str) -> list[Message]:
    return [Message("user", "Count."), Message("assistant", begun)]


@pytest.mark.parametrize("begun", ["One, two", "One, two ", " One,\ntwo\n", "One"])
@pytest.mark.parametrize("template", [CHAT_ML, TRIMMED, THINKING])
def test_prompts_are_those_of_transformers(template: str, begun: str) -> None:
    prompt = ChatTemplate(template, {}).render(conversation(begun), CONTINUED)
    turns = [{"role": turn.role, "content": turn.content} for turn in conversation(begun)]
    theirs: Any = render_jinja_template(
        [turns], chat_template=template, continue_final_message=True
    )
    assert prompt == theirs[0][0]
    assert not prompt.endswith(("<|im_end|>\n", "</s>", "<end>\n"))


def test_what_a_template_drops_before_the_end_is_not_missed() -> None:
    prompt = ChatTemplate(THINKING, {}).render(conversation("so</think>\nOne"), CONTINUED)
    assert prompt == "user: Count.<end>\nassistant: <think>\n\n</think>\n\nOne"


def test_parts_are_continued_after_the_last() -> None:
    template = (
        "{% for message in messages %}{{ message.role }}:"
        "{% for part in message.content %}{{ part.text or '<image>' }}{% endfor %};{% endfor %}"
    )
    parts = (ContentPart(image=b"x"), ContentPart(text="A"), ContentPart(text="B"))
    turns = [Message("user", "Count."), Message("assistant", parts=parts)]
    prompt = ChatTemplate(template, {}, has_images=True).render(turns, CONTINUED)
    assert prompt == "user:Count.;assistant:<image>AB"


@pytest.mark.parametrize(
    ("template", "last", "field"),
    [
        (CHAT_ML, Message("user", "One"), "continue_final_message"),
        (CHAT_ML, Message("assistant", ""), "messages[1].content"),
        (
            CHAT_ML,
            Message("assistant", "One", (ServedCall("1", "f"),)),
            "messages[1].tool_calls",
        ),
        (
            "{% for message in messages %}{{ message.content | upper }}{% endfor %}",
            Message("assistant", "One"),
            "continue_final_message",
        ),
    ],
)
def test_what_cannot_be_continued_is_refused(template: str, last: Message, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        ChatTemplate(template, {}).render([Message("user", "Count."), last], CONTINUED)
    assert caught.value.field == field


def test_variables_of_a_template_cannot_begin_an_answer() -> None:
    options = ChatOptions(template_variables='{"continue_final_message": true}')
    with pytest.raises(InvalidArgumentError, match="cannot set continue_final_message"):
        ChatTemplate(CHAT_ML, {}).render(conversation("One"), options)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A chat model whose template writes only what messages say, with spaces between."""
    template = (
        "{% for message in messages %}{{ message.content }}{% if not loop.last %} {% endif %}"
        "{% endfor %}{% if add_generation_prompt %} end{% endif %}"
    )
    bundles = chat_bundles(tmp_path_factory.mktemp("continued"), metaspace(), template, 64)
    with server_process(bundles) as server:
        yield server


@pytest.fixture
def expected(client: Client) -> str:
    """What follows the prompt as a text."""
    (output,) = client.generate("model", PROMPT, max_new_tokens=5).outputs
    answered = client.generate("model", messages=messages(), max_new_tokens=5).outputs[0]
    assert output.text != answered.text
    return output.text


def messages() -> list[ClientMessage]:
    return [ClientMessage(role, text) for role, text in TURNS]


def turns() -> list[Any]:
    return [{"role": role, "content": text} for role, text in TURNS]


def test_grpc(client: Client, expected: str) -> None:
    options: Any = {"messages": messages(), "max_new_tokens": 5, "continue_final_message": True}
    assert client.generate("model", **options).outputs[0].text == expected
    stream = client.generate_stream("model", **options)
    assert "".join(piece.text for piece in stream) == expected


def test_errors_name_the_field(client: Client) -> None:
    for last, field in (
        (ClientMessage("user", "true"), "chat.continue_final_message"),
        (
            ClientMessage("assistant", "true", tool_calls=(ToolCall("1", "f", "{}"),)),
            "messages[2].tool_calls",
        ),
    ):
        with pytest.raises(TriuneError) as caught:
            client.generate("model", messages=[*messages(), last], continue_final_message=True)
        assert [bad.field for bad in caught.value.violations] == [field]


def test_openai(server: ServerProcess, expected: str) -> None:
    base = f"{server.http_url}/v1"
    client = openai.OpenAI(base_url=base, api_key="none", max_retries=0)
    fields: Any = {"model": "model", "messages": turns(), "max_tokens": 5, "temperature": 0}
    for given in ({}, {"add_generation_prompt": False}):
        whole = client.chat.completions.create(
            **fields, extra_body={"continue_final_message": True, **given}
        )
        assert whole.choices[0].message.content == expected
    for both in (True, False):
        contrary = {"continue_final_message": both, "add_generation_prompt": both}
        with pytest.raises(openai.BadRequestError, match="add_generation_prompt"):
            client.chat.completions.create(**fields, extra_body=contrary)
    body = {"model": "model", "messages": turns(), "continue_final_message": True}
    tokens = httpx.post(f"{server.http_url}/tokenize", json=body).json()["tokens"]
    assert tokens == PROMPT_IDS


def test_anthropic(server: ServerProcess, expected: str) -> None:
    client = anthropic.Anthropic(base_url=server.http_url, api_key="none", max_retries=0)
    fields: Any = {"model": "model", "messages": turns(), "extra_body": {"temperature": 0}}
    (block,) = client.messages.create(**fields, max_tokens=5).content
    assert block.type == "text"
    assert block.text == expected
    with client.messages.stream(**fields, max_tokens=5) as stream:
        assert "".join(stream.text_stream) == expected
    counted = client.messages.count_tokens(model="model", messages=turns())
    assert counted.input_tokens == len(PROMPT_IDS)


def test_ollama(server: ServerProcess, expected: str) -> None:
    client = ollama.Client(host=server.http_url)
    options = {"num_predict": 5, "temperature": 0}
    found = client.chat("model", turns(), options=options)
    assert found.message.content == expected
