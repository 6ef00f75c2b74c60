"""Conversations are cut at their answers, and each part is tokenized alone."""

import pytest

from model.chat_template import compile_template
from model.conversation import Part, conversation_parts
from model.examples import ChatTurn

CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
END = 7
TURNS = [
    ChatTurn(role=role, content=content)  # type: ignore[arg-type]
    for role, content in (("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"))
]
LAST = ChatTurn(role="assistant", content="d")


def encode(text: str) -> list[int]:
    """The letters, and :data:`END` for an end token."""
    return [END if x == "\0" else ord(x) for x in text.replace("<end>", "\0")]


def parts_of(template: str, eos: tuple[int, ...] = (END, 1)) -> list[tuple[str, bool]]:
    found = conversation_parts([*TURNS, LAST], compile_template(template), {}, encode, eos)
    return [(text_of(part), part.is_answer) for part in found if part.ids]


def text_of(part: Part) -> str:
    return "".join("<end>" if id_ == END else chr(id_) for id_ in part.ids)


def test_an_answer_ends_with_its_end_token() -> None:
    assert parts_of(CHATML) == [
        ("<system>s<end>\n<user>a<end>\n<assistant>", False),
        ("b<end>", True),
        ("\n", False),
        ("<user>c<end>\n<assistant>", False),
        ("d<end>", True),
        ("\n", False),
    ]


def test_an_answer_that_later_turns_change_is_not_learned() -> None:
    template = CHATML.replace(
        "{{ m.content }}",
        "{{ m.content if loop.last or m.role != 'assistant' else 'short' }}",
    )
    assert parts_of(template) == [
        ("<system>s<end>\n<user>a<end>\n<assistant>short<end>\n<user>c<end>\n<assistant>", False),
        ("d<end>", True),
        ("\n", False),
    ]


def test_an_answer_without_an_end_token_gets_one() -> None:
    found = parts_of(CHATML.replace("<end>", "."))
    assert found[-1] == ("d.\n<end>", True)
    assert found[1] == ("b.\n", True)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% if messages[-1].role == 'user' %}other{% endif %}" + CHATML, "another prompt"),
        ("{{ raise_exception('no system') }}", "does not render it: no system"),
    ],
)
def test_a_template_that_cannot_be_used_is_an_error(template: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parts_of(template)
