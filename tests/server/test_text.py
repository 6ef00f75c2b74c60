"""Incremental detokenization, stop strings and chat templates."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers.utils.chat_template_utils import render_jinja_template

from server.errors import InvalidArgumentError
from server.text.chat import (
    ChatOptions,
    ChatTemplate,
    Message,
    ReasoningSupport,
    Tool,
    ToolCall,
)
from server.text.stop_strings import StopStrings
from server.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def bytes_tokenizer(tmp_path_factory) -> Tokenizer:
    """One token per byte, so non-ASCII characters take several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = HuggingFaceTokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    path = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    library.save(str(path))
    return Tokenizer(path)


@pytest.fixture(scope="module")
def fallback_tokenizer(tmp_path_factory) -> Tokenizer:
    """As Llama 2's: tokens 0 to 255 are bytes, those after them words."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocabulary |= {"▁a": 256, "b": 257, "日": 258, "<unk>": 259}
    library = HuggingFaceTokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    strip = decoders.Strip(" ", 1, 0)
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    )
    path = tmp_path_factory.mktemp("fallback") / "tokenizer.json"
    library.save(str(path))
    return Tokenizer(path)


@settings(max_examples=500)
@given(
    parts=st.lists(
        st.sampled_from([[256], [257], [258], [0x41], [0xC3], [*"é".encode()], [*"日".encode()]])
    ),
    cut=st.integers(0, 10),
)
def test_invalid_bytes_do_not_change_earlier_text(fallback_tokenizer, parts, cut) -> None:
    ids = [id_ for part in parts for id_ in part]
    stream, whole = fallback_tokenizer.detokenizer(), fallback_tokenizer.detokenizer()
    joined = "".join(map(stream.push, ids[:cut])) + stream.finish(ids[cut:])
    assert joined == whole.finish(ids)
    if [0xC3] not in parts:
        assert joined == fallback_tokenizer.decode(ids)


@settings(max_examples=300)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_joined_chunks_equal_the_text(bytes_tokenizer, text) -> None:
    text = text.rstrip("\ufffd")
    stream = bytes_tokenizer.detokenizer()
    chunks = [stream.push(id_) for id_ in bytes_tokenizer.encode([text])[0]]
    assert "".join(chunks) + stream.finish() == text


@pytest.mark.parametrize("tokenizer", ["bytes_tokenizer", "fallback_tokenizer"])
@settings(max_examples=300)
@given(parts=st.lists(st.lists(st.integers(0, 259), max_size=5), max_size=5))
def test_tokens_pushed_together_are_the_same_text(request, tokenizer, parts) -> None:
    library = request.getfixturevalue(tokenizer)
    one, together = library.detokenizer(), library.detokenizer()
    single = "".join(one.push(id_) for part in parts for id_ in part) + one.finish()
    assert "".join(map(together.push_all, parts)) + together.finish() == single


@settings(max_examples=300)
@given(
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")),
    cut=st.integers(0, 200),
)
def test_chunks_contain_no_partial_characters(bytes_tokenizer, text, cut) -> None:
    ids = bytes_tokenizer.encode([text])[0][:cut]
    stream = bytes_tokenizer.detokenizer()
    joined = "".join(stream.push(id_) for id_ in ids) + stream.finish()
    assert "\ufffd" not in joined
    assert text.startswith(joined)
    assert joined == bytes_tokenizer.decode(ids)


@pytest.mark.parametrize("bad_byte", [0xC3, 0xE6, 0xFF])
def test_invalid_bytes_are_not_kept(fallback_tokenizer, bad_byte: int) -> None:
    stream = fallback_tokenizer.detokenizer()
    texts = []
    for _ in range(500):
        texts.append(stream.push(bad_byte))
        assert len(stream._pending) <= 65
    text = "".join(texts)
    assert set(text) == {"\ufffd"}
    assert len(text) > 400
    assert (stream.push(257) + stream.finish()).lstrip("\ufffd") == "b"


def test_special_tokens_are_not_kept(tmp_path: Path) -> None:
    library = HuggingFaceTokenizer(models.WordLevel({"a": 0, "b": 1, "<s>": 2}, unk_token="a"))
    library.decoder = decoders.Fuse()
    library.add_special_tokens(["<s>"])
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    stream, ids = tokenizer.detokenizer(), [0, *[2] * 300, 1, 2, 0]
    text = "".join(map(stream.push, ids))
    assert not stream._pending
    assert text + stream.finish() == tokenizer.decode(ids) == "aba"


@given(
    chunks=st.lists(st.text("abc", max_size=4), max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_text_ends_before_the_first_stop_string(chunks, stops) -> None:
    matcher = StopStrings(stops)
    released, pushed = "", ""
    for chunk in chunks:
        pushed += chunk
        released += matcher.push(chunk)
        if matcher.is_matched:
            break
    released += matcher.finish()
    stop_positions = [pushed.find(stop) for stop in stops if stop in pushed]
    assert matcher.is_matched == bool(stop_positions)
    assert released == (pushed[: min(stop_positions)] if stop_positions else pushed)


def test_releases_text_once_no_stop_string_can_match() -> None:
    matcher = StopStrings(["</end>"])
    assert [matcher.push(chunk) for chunk in ("a <", "/e", "x", "y")] == ["a ", "", "</ex", "y"]


def test_template_renders_or_raises() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ raise_exception('no turns') }}"
        "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}",
        {},
    )
    assert template.render([Message("user", "Hi")]) == "<user>Hi<assistant>"
    with pytest.raises(InvalidArgumentError, match="messages: no turns"):
        template.render([Message("assistant", "Hi")])


def test_tools_and_their_calls_render_as_in_transformers() -> None:
    source = (
        "{% for tool in tools or [] %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}"
        "{% for m in messages %}{{ m.role }} {{ m.content }}{% if m.tool_calls is defined %}"
        "{{ m.tool_calls | tojson }}{% endif %}{% if 'tool_call_id' in m %}{{ m.tool_call_id }}"
        "{% endif %}{% endfor %}{% if enable_thinking %}think{% endif %}"
    )
    parameters: dict[str, Any] = {"type": "object", "properties": {"ort": {"enum": ["Zürich"]}}}
    call: Any = {
        "id": "a1",
        "type": "function",
        "function": {"name": "weather", "arguments": {"ort": "Zürich"}},
    }
    tools: Any = [
        {"type": "function", "function": {"name": "time", "description": "Now."}},
        {"type": "function", "function": {"name": "weather", "parameters": parameters}},
    ]
    conversation: Any = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "Sunny", "tool_call_id": "a1"},
    ]
    rendered: Any = render_jinja_template(
        [conversation], tools=tools, chat_template=source, enable_thinking=True
    )
    ((expected,), _) = rendered
    messages = [
        Message("user", "Hi"),
        Message("assistant", "", (ToolCall("a1", "weather", '{"ort": "Zürich"}'),)),
        Message("tool", "Sunny", tool_call_id="a1"),
    ]
    offered = (Tool("time", "Now."), Tool("weather", parameters=json.dumps(parameters)))
    template = ChatTemplate(source, {})
    assert template.describes_tools
    options = ChatOptions(offered, template_variables='{"enable_thinking": true}')
    assert template.render(messages, options) == expected
    assert not ChatTemplate("{{ messages[0].tools }} tools", {}).describes_tools


@pytest.mark.parametrize(
    ("source", "support"),
    [
        ("{{ messages[0].content }}", ReasoningSupport.NEVER),
        ("{{ messages[0].enable_thinking }}", ReasoningSupport.NEVER),
        ("{% if enable_thinking %}<think></think>{% endif %}", ReasoningSupport.OPTIONAL),
        ("Reasoning: {{ reasoning_effort }}", ReasoningSupport.OPTIONAL),
        ("{{ messages[0].content.split('</think>')[-1] }}<think>", ReasoningSupport.ALWAYS),
    ],
)
def test_templates_tell_whether_a_model_thinks(source: str, support: ReasoningSupport) -> None:
    assert ChatTemplate(source, {}).reasoning is support


def test_template_cannot_access_the_interpreter() -> None:
    template = ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}", {})
    with pytest.raises(InvalidArgumentError, match="unsafe"):
        template.render([Message("user", "Hi")])
