"""Conversations that are too long for the model go on without their oldest messages."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import ollama
import openai
import pytest

from client.errors import TriuneError
from client.sync import Client
from client.types import Message
from server.service.chat_prompt import without_oldest
from server.text.chat import ContentPart
from server.text.chat import Message as ServedMessage
from tests.server.chat_models import chat_bundles
from tests.server.test_grammar import metaspace
from tests.serving import ServerProcess, server_process

TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] }} {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}end{% endif %}"
)
LENGTH = 64
SYSTEM = ("system", "true")
# The first question makes it too long.
TURNS = [
    (role, " ".join([word] * 16))
    for role, word in zip(
        ("user", "assistant") * 3, ("red", "false", "red", "true", "false"), strict=False
    )
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    bundles = chat_bundles(tmp_path_factory.mktemp("dropped"), metaspace(), TEMPLATE, LENGTH)
    with server_process(bundles) as server:
        yield server


def messages(turns: list[tuple[str, str]]) -> list[Message]:
    return [Message(role, text) for role, text in turns]


def length(turns: list[tuple[str, str]]) -> int:
    """The number of tokens of the prompt."""
    text = "".join(f"{role[0]} {content} " for role, content in turns)
    return len(metaspace().encode(f"{text}end", add_special_tokens=False).ids)


def answer(client: Client, turns: list[tuple[str, str]], **options: Any) -> tuple[str, int]:
    result = client.generate("model", messages=messages(turns), **options)
    return result.outputs[0].text, result.usage.input_tokens


def test_the_longest_rest_that_leaves_room_is_answered(client: Client) -> None:
    sizes = [length([SYSTEM, *TURNS[start:]]) for start in (0, 2, 4)]
    assert sizes[0] > LENGTH > sizes[1] + 1 > sizes[2]
    for room, start in ((1, 2), (LENGTH - sizes[1], 2), (LENGTH - sizes[1] + 1, 4)):
        given = {"max_new_tokens": room}
        expected = answer(client, [SYSTEM, *TURNS[start:]], **given)
        assert expected[1] == length([SYSTEM, *TURNS[start:]])
        found = answer(client, [SYSTEM, *TURNS], drop_oldest_messages=True, **given)
        assert found == expected
    # Without max_new_tokens, and with more, a quarter of the length is left.
    for more in ({}, {"max_new_tokens": LENGTH}):
        _, kept = answer(client, [SYSTEM, *TURNS], drop_oldest_messages=True, **more)
        assert kept == max(size for size in sizes if size <= LENGTH - LENGTH // 4)


def test_what_fits_is_whole(client: Client) -> None:
    turns = [SYSTEM, *TURNS[2:]]
    options: dict[str, Any] = {"max_new_tokens": 1}
    assert answer(client, turns, drop_oldest_messages=True, **options) == answer(
        client, turns, **options
    )


@pytest.mark.parametrize(
    "turns",
    [
        TURNS,  # nobody asked for it
        [TURNS[0], ("user", " ".join(["red"] * LENGTH))],  # the last is too long alone
        [("user", "red"), ("assistant", " ".join(["red"] * LENGTH))],  # nothing may be dropped
    ],
)
def test_what_is_still_too_long_is_an_error(client: Client, turns: list[tuple[str, str]]) -> None:
    drops = turns is not TURNS
    with pytest.raises(TriuneError) as caught:
        answer(client, [SYSTEM, *turns], max_new_tokens=1, drop_oldest_messages=drops)
    assert [bad.field for bad in caught.value.violations] == ["messages"]


@pytest.mark.parametrize("longest", range(10))
@pytest.mark.parametrize("roles", ["suaua", "uauau", "suiau", "iuau", "suatausau", "sss", "u"])
def test_the_search_finds_the_first_rest_that_fits(roles: str, longest: int) -> None:
    """``roles``: system, user, assistant, tool, and a user with an image; a token each."""
    names = {"s": "system", "u": "user", "a": "assistant", "t": "tool", "i": "user"}
    image = (ContentPart(image=b"x"),)
    turns = [ServedMessage(names[role], parts=image if role == "i" else ()) for role in roles]
    tried = []

    async def tokenize(kept: Sequence[ServedMessage]) -> list[tuple[int, ...]]:
        tried.append(kept)
        return [tuple(range(len(kept)))]

    rests = [
        "s" * roles[:start].count("s") + roles[start:]
        for start, role in enumerate(roles)
        if role in "ui" and set(roles[:start]) - {"s"} and "i" not in roles[:start]
    ]
    expected = next((rest for rest in rests if len(rest) <= longest), None)
    found = asyncio.run(without_oldest(turns, tokenize, longest))
    assert (found and len(found[0])) == (expected and len(expected))
    assert len(tried) <= len(rests).bit_length()
    assert {"".join(turn.role[0] for turn in kept) for kept in tried} <= {
        rest.replace("i", "u") for rest in rests
    }


def test_other_protocols(server: ServerProcess, client: Client) -> None:
    expected, kept = answer(client, [SYSTEM, *TURNS[2:]], max_new_tokens=3)
    turns: Any = [{"role": role, "content": text} for role, text in (SYSTEM, *TURNS)]
    api = openai.OpenAI(base_url=f"{server.http_url}/v1", api_key="none", max_retries=0)
    fields: Any = {"model": "model", "input": turns, "max_output_tokens": 3, "temperature": 0}
    response = api.responses.create(**fields, truncation="auto")
    assert response.usage is not None
    assert (response.usage.input_tokens, response.truncation) == (kept, "auto")
    assert response.output_text == expected
    with pytest.raises(openai.BadRequestError) as refused:
        api.responses.create(**fields)
    assert refused.value.param == "input"
    local = ollama.Client(host=server.http_url)
    options = {"num_predict": 3, "temperature": 0}
    found = local.chat("model", turns, options=options)
    assert (found.message.content, found.prompt_eval_count) == (expected, kept)
    with pytest.raises(ollama.ResponseError, match="messages"):
        local._request(
            *(ollama.ChatResponse, "POST", "/api/chat"),
            json={"model": "model", "messages": turns, "truncate": False, "stream": False},
        )
