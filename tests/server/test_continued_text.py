"""Texts that continue a prompt.

Decoders of SentencePiece drop the space between both, and a prompt may end inside a character.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from client.options import Choices
from client.sync import Client
from client.types import Message
from server.text.tokenizer import Tokenizer
from tests.server.chat_models import chat_bundles
from tests.server.test_grammar import byte_fallback, byte_level, metaspace
from tests.serving import server_process

PROMPT = "red false 12"


def saved(library: Any, factory: pytest.TempPathFactory) -> Tokenizer:
    path = factory.mktemp("tokenizer") / "tokenizer.json"
    library.save(str(path))
    return Tokenizer(path)


@pytest.fixture(scope="module", params=[metaspace, byte_fallback, byte_level])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    return saved(request.param(), tmp_path_factory)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(
        st.sampled_from(["true", "red", "é", "日本", "😀", "x", "▁", "<end>"]), min_size=2
    ),
    at=st.integers(1),
    end=st.integers(2),
)
def test_prompt_and_text_are_the_whole(
    tokenizer: Tokenizer, words: list[str], at: int, end: int
) -> None:
    (ids,) = tokenizer.encode([" ".join(words)])
    assume(len(ids) > 1)
    ids = ids[: 2 + end % (len(ids) - 1)]
    at = 1 + at % (len(ids) - 1)
    before, after = ids[:at], ids[at:]
    previous = tokenizer.last_with_text(before)
    one, together, at_once = (tokenizer.detokenizer(previous) for _ in range(3))
    text = at_once.finish(after)
    assert tokenizer.detokenizer().finish(before) + text == tokenizer.decode(ids)
    assert "".join(map(one.push, after)) + one.finish() == text
    assert together.push_all(after) + together.finish() == text


@pytest.mark.parametrize("library", [byte_fallback, byte_level])
def test_replacement_characters_of_a_text_stay(
    library: Callable[[], Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """However many: they look like the text of an incomplete character, which is left out."""
    tokenizer, text = saved(library(), tmp_path_factory), "true" + "�" * 50
    (ids,) = tokenizer.encode([text])
    stream = tokenizer.detokenizer()
    assert tokenizer.decode(ids) == text
    assert "".join(map(stream.push, ids)) + stream.finish() == text


@pytest.mark.parametrize("previous", [None, 0])
def test_texts_without_words_before_begin_with_a_word(
    tokenizer: Tokenizer, previous: int | None
) -> None:
    (ids,) = tokenizer.encode(["true red"])
    found = tokenizer.last_with_text([] if previous is None else [previous])
    assert found == ()
    assert tokenizer.detokenizer(found).finish(ids) == "true red"


def test_text_does_not_continue_invalid_bytes(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Prompts of token ids may have any bytes."""
    tokenizer = saved(byte_fallback(), tmp_path_factory)
    (ids,) = tokenizer.encode(["true"])
    for name in ("<0x80>", "<0xFF>"):
        byte = tokenizer.id_of(name)
        assert byte is not None
        found = tokenizer.last_with_text([*ids, *[byte] * 9])
        assert found == ()
        assert tokenizer.detokenizer(found).finish(ids) == "true"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    bundles = chat_bundles(tmp_path_factory.mktemp("continued"), metaspace(), template, 64)
    with server_process(bundles) as server, Client(server.target) as client:
        yield client


@pytest.mark.parametrize("search", [{}, {"beam_size": 2}])
def test_a_server_keeps_the_space(client: Client, search: dict[str, int]) -> None:
    (false,) = metaspace().encode("false", add_special_tokens=False).ids
    options: Any = {"max_new_tokens": 2, "logit_bias": {false: 100.0}, **search}
    whole = f"{PROMPT} false false"
    (output,) = client.generate("model", PROMPT, **options).outputs
    assert PROMPT + output.text == whole
    (output,) = client.generate("model", PROMPT, echo=True, **options).outputs
    assert output.text == whole
    pieces = client.generate_stream("model", PROMPT, **options)
    assert PROMPT + "".join(piece.text for piece in pieces) == whole
    (output,) = client.generate("model", PROMPT, stop_strings=[" false"], **options).outputs
    assert output.text == ""


def test_answers_and_constrained_texts_stand_alone(client: Client) -> None:
    (false,) = metaspace().encode("false", add_special_tokens=False).ids
    options: Any = {"max_new_tokens": 2, "logit_bias": {false: 100.0}}
    answer = client.generate("model", messages=[Message("user", PROMPT)], **options)
    assert answer.outputs[0].text == "false false"
    chosen = client.generate("model", PROMPT, grammar=Choices(("false", "true")), **options)
    assert chosen.outputs[0].text == "false"
