"""Tool calls are found in texts, however they are streamed; everything else stays text."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.service.tool_calls import ToolCallParser

TOOLS = frozenset({"weather", "add"})
CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
SUM = '{"name": "add", "arguments": {"a": 1, "b": [2, null]}}'
WEATHER, ADD = (
    (call["name"], json.dumps(call["arguments"])) for call in map(json.loads, (CALL, SUM))
)


def parse(*pieces: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The text, and the names and arguments of the calls."""
    parser = ToolCallParser(TOOLS)
    parsed = [*map(parser.push, pieces), parser.finish()]
    calls = [call for part in parsed for call in part.calls]
    assert len({call.id for call in calls}) == len(calls)
    text = "".join(part.text for part in parsed)
    return text, tuple((call.name, call.arguments) for call in calls)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"<tool_call>\n{CALL}\n</tool_call>", ("", (WEATHER,))),
        (f"<tool_call>{CALL}</tool_call>\n<tool_call>{SUM}</tool_call>\n", ("", (WEATHER, ADD))),
        (f"I look.\n<tool_call>{CALL}</tool_call>", ("I look.", (WEATHER,))),
        (f"<tool_call>{CALL}", ("", (WEATHER,))),
        (f"<tool_call>[{CALL}, {SUM}]</tool_call>", ("", (WEATHER, ADD))),
        (CALL.replace("arguments", "parameters"), ("", (WEATHER,))),
        (f" [TOOL_CALLS] [{CALL}]", ("", (WEATHER,))),
        (f"[{CALL}, {SUM}]", ("", (WEATHER, ADD))),
        (f"{CALL}; {SUM}", ("", (WEATHER, ADD))),
        ('{"name": "add"}', ("", (("add", "{}"),))),
        (f"```json\n{CALL}\n```", ("", (WEATHER,))),
        (f"```\n{CALL}\n{SUM}```\n", ("", (WEATHER, ADD))),
        (f"```json\n{CALL}\n```\n\n```json\n{SUM}\n```", ("", (WEATHER, ADD))),
        (CALL.replace("Rome", "```"), ("", (("weather", '{"city": "```"}'),))),
    ],
)
def test_calls_are_found(text: str, expected: Any) -> None:
    assert parse(text) == expected
    assert parse(*text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "It is sunny.",
        " Sunny \n ",
        "a <tool_call",
        "a < b, <tool_calls>",
        "<tool_call>no JSON</tool_call> ",
        "<tool_call>",
        f"<tool_call>{CALL} and more</tool_call>",
        f"{CALL} is a call",
        CALL.replace("weather", "unknown"),
        CALL.replace('"weather"', '["weather"]'),
        CALL.replace('{"city": "Rome"}', '"Rome"'),
        CALL.replace('"Rome"', "NaN"),
        CALL.replace('"Rome"', "1e999"),
        CALL.replace('"Rome"', '"\\ud800"'),
        CALL.replace('"Rome"', "9" * 5000),
        CALL[:-1],
        "[" * 5000,
        "[1] A list\n",
        '{"city": "Rome"}',
        "[]x",
        f"```json\n{CALL}\n``` is a call",
        f"```python\nprint({CALL})\n```",
        '```json\n{"city": "Rome"}\n```',
        "```",
        "`weather` is a tool",
    ],
)
def test_everything_else_stays_text(text: str) -> None:
    assert parse(text) == (text, ())
    assert parse(*text) == (text, ())


@given(
    st.lists(
        st.sampled_from(["<tool_call>", "</tool_call>", CALL, SUM, *"[], \n<aé", "```", "json"]),
        max_size=12,
    ),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_the_pieces_of_a_text_do_not_matter(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    ends = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[start:end] for start, end in itertools.pairwise(ends)]
    text_of_all, calls = parse(text)
    assert parse(*pieces) == (text_of_all, calls)
    if not calls:
        assert text_of_all == text


def test_text_before_a_call_is_not_held_back() -> None:
    parser = ToolCallParser(TOOLS)
    assert parser.push("I look it up").text == "I look it up"
    assert parser.push(" now <tool").text == " now"
    assert parser.push("s>").text == " <tools>"


@pytest.mark.parametrize("text", ["```py", "```\nx = 1", "```json\n7", "``a"])
def test_other_code_is_not_held_back(text: str) -> None:
    assert ToolCallParser(TOOLS).push(text).text == text
