"""Text as it grows: no broken character, no text past a stop string."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers import decoders, models, pre_tokenizers

from server.errors import InvalidArgumentError
from server.text.chat import ChatTemplate, Message
from server.text.stop_strings import StopStrings
from server.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def bytes_tokenizer(tmp_path_factory) -> Tokenizer:
    """One token per byte: characters beyond ASCII always take several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = HuggingFaceTokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    path = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    library.save(str(path))
    return Tokenizer(path)


@settings(max_examples=300)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_pieces_joined_are_the_text(bytes_tokenizer, text) -> None:
    text = text.rstrip("\ufffd")
    stream = bytes_tokenizer.detokenizer()
    pieces = [stream.push(id_) for id_ in bytes_tokenizer.encode([text])[0]]
    assert "".join(pieces) + stream.finish() == text


@settings(max_examples=300)
@given(
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")),
    cut=st.integers(0, 200),
)
def test_no_piece_has_a_broken_character(bytes_tokenizer, text, cut) -> None:
    ids = bytes_tokenizer.encode([text])[0][:cut]
    stream = bytes_tokenizer.detokenizer()
    joined = "".join(stream.push(id_) for id_ in ids) + stream.finish()
    assert "\ufffd" not in joined
    assert text.startswith(joined)
    assert joined == bytes_tokenizer.decode(ids)


@given(
    pieces=st.lists(st.text("abc", max_size=4), max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_text_ends_just_before_the_first_stop(pieces, stops) -> None:
    matcher = StopStrings(stops)
    shown, fed = "", ""
    for piece in pieces:
        fed += piece
        shown += matcher.push(piece)
        if matcher.is_matched:
            break
    shown += matcher.finish()
    found = [fed.find(stop) for stop in stops if stop in fed]
    assert matcher.is_matched == bool(found)
    assert shown == (fed[: min(found)] if found else fed)


def test_text_that_can_no_longer_be_a_stop_is_shown_at_once() -> None:
    matcher = StopStrings(["</end>"])
    assert [matcher.push(piece) for piece in ("a <", "/e", "x", "y")] == ["a ", "", "</ex", "y"]


def test_a_template_renders_and_refuses() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% if m.role == 'assistant' %}{{ raise_exception('no turns') }}"
        "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}",
        {},
    )
    assert template.render([Message("user", "Hi")]) == "<user>Hi<assistant>"
    with pytest.raises(InvalidArgumentError, match="messages: no turns"):
        template.render([Message("assistant", "Hi")])


def test_a_template_cannot_reach_the_interpreter() -> None:
    template = ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}", {})
    with pytest.raises(InvalidArgumentError, match="unsafe"):
        template.render([Message("user", "Hi")])
