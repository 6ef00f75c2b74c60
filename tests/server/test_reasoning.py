"""Reasoning before an answer, in texts that arrive in pieces of any size."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.service.reasoning import ReasoningCounter, ReasoningParser, opens_reasoning
from server.text.detokenizer import StreamingDetokenizer
from server.text.tags import start_of_tag
from tests.server.test_grammar import byte_level


def separated(pieces: list[str], *, is_open: bool = False) -> tuple[str, str]:
    parser = ReasoningParser(is_open=is_open)
    parts = [*map(parser.push, pieces), parser.finish()]
    return "".join(part.reasoning for part in parts), "".join(part.text for part in parts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nA b.\n</think>\n\nYes.", ("A b.", "Yes.")),
        (" \n<think>A</think> Yes </think>.", ("A", "Yes </think>.")),
        ("<think>\n\n</think>\n\nYes.\n", ("", "Yes.\n")),
        ("<think>a < b </thin>k", ("a < b </thin>k", "")),
        ("<think>a </thi", ("a </thi", "")),
        ("<think>", ("", "")),
        ("<think>a</think>", ("a", "")),
        ("<thinking>a</think>", ("", "<thinking>a</think>")),
        ("Yes <think>a</think>.", ("", "Yes <think>a</think>.")),
        (" <thi", ("", " <thi")),
        (" Yes. ", ("", " Yes. ")),
        ("", ("", "")),
    ],
)
def test_what_is_reasoning(text: str, expected: tuple[str, str]) -> None:
    assert separated([text]) == expected
    assert separated(list(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\nA\n</think>\nYes.", ("A", "Yes.")),
        ("A", ("A", "")),
        ("</think>Yes.", ("", "Yes.")),
    ],
)
def test_a_text_that_begins_with_reasoning(text: str, expected: tuple[str, str]) -> None:
    assert separated([text], is_open=True) == expected
    assert separated(list(text), is_open=True) == expected


texts = st.lists(st.sampled_from(["<think>", "</think>", "<", "</th", "ink>", " ", "\n", "a", "é"]))


@given(texts, st.booleans(), st.data())
def test_pieces_do_not_matter(parts: list[str], is_open, data) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    starts, ends = [0, *cuts], [*cuts, len(text)]
    pieces = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    assert separated(pieces, is_open=is_open) == separated([text], is_open=is_open)


def num_reasoning_tokens(ids: list[int], *, is_open: bool) -> int:
    """How many tokens it takes until the text has the end of its reasoning."""
    decode = byte_level().decode
    if not is_open and not re.match(r"\s*<think>", decode(ids)):
        return 0
    whole = r"(?s).*?</think>" if is_open else r"(?s)\s*<think>.*?</think>"
    counts = [number for number in range(1, len(ids) + 1) if re.match(whole, decode(ids[:number]))]
    return counts[0] if counts else len(ids)


@given(texts, st.booleans(), st.data())
def test_tokens_are_counted_exactly(parts: list[str], is_open, data) -> None:
    ids = byte_level().encode("".join(parts)).ids
    cut, forced = (data.draw(st.integers(0, len(ids))) for _ in range(2))
    detokenizer = StreamingDetokenizer(byte_level(), frozenset({0}))
    counter = ReasoningCounter(detokenizer, is_open=is_open)
    counter.push(ids[:cut])
    counter.push(ids[cut:])
    expected = num_reasoning_tokens(ids, is_open=is_open)
    assert counter.num_tokens == expected
    forcing = ReasoningCounter(StreamingDetokenizer(byte_level(), frozenset({0})), is_open=is_open)
    forcing.skip(ids[:forced])
    forcing.push(ids[forced:])
    assert forcing.num_tokens == max(expected - forced, 0)


@given(texts)
def test_only_tags_and_white_space_around_them_are_lost(parts: list[str]) -> None:
    text = "".join(parts)
    reasoning, answer = separated([text])
    begin = text.lstrip()
    if not begin.startswith("<think>"):
        assert (reasoning, answer) == ("", text)
        return
    before, _, after = begin.removeprefix("<think>").partition("</think>")
    assert reasoning.strip() == before.strip()
    assert answer == after.lstrip()


def test_where_a_tag_begins() -> None:
    assert start_of_tag("ab<thi", "<think>") == 2
    assert start_of_tag("ab<thi ", "<think>") == 7
    assert start_of_tag("<think>", "<think>") == 7
    assert start_of_tag("", "<think>") == 0


def test_prompts_that_open_reasoning() -> None:
    assert opens_reasoning("assistant\n<think>\n")
    assert not opens_reasoning("assistant\n<think>\n\n</think>\n\n")
